"""The letters of shapes and what they stand for."""

LETTERS = {
    "B": "batch", "T": "length", "Tq": "query length", "Tk": "key length", "C": "model width", "H": "query heads",
    "G": "key/value heads (G divides H)", "D": "head width", "Dv": "value head width", "F": "hidden width",
    "E": "experts", "K": "experts per token", "V": "vocabulary", "N": "tokens", "L": "layers", "W": "window",
    "R": "width that rotary positions turn", "Lk": "width of the latent", "Lq": "width of the queries' latent",
    "Ci": "image channels", "Hi": "image height", "Wi": "image width", "P": "patch size", "S": "new tokens",
}
