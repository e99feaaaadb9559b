"""Error bounds that run: arithmetic models, tensors with error bars, and the rules that carry the bars.

`import assay.numbers.evaluate` (or any of `bound`'s users) loads the rules; `arithmetic` and `forms` stand alone.
"""
