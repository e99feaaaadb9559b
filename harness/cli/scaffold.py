"""`assay new KIND`: an adapter to start from, with a test, written so that they run at once."""
from __future__ import annotations

import os
from pathlib import Path

from assay.contract import conventions
from assay.contract.declaration import DEFAULT_DTYPES
from assay.contract.kinds import REQUIRED, Kind
from assay.contract.kinds import kind as kind_named
from assay.errors import UsageError
from assay.report.render import write_text

ADAPTER = '''"""{summary} An implementation of `{name}` for assay.

    assay check {file}                    checks it
    assay check {file} --profile quick    in seconds
    assay plan {file}                     says what would be checked, and what not
"""
from __future__ import annotations

import assay


@assay.implements(
    "{name}",
    name="mine",
    # dtypes=({dtypes}),  # those it takes; these are the default
    # lacks={{{lacks}}},  # features it does not have, out of: {features}
    # limits={{}},  # sizes or values it is limited to, such as {{"D": {{64, 128}}, "activation": {{"silu"}}}}
    # conventions={{{conventions}}},  # where it differs from the default; the values: {values}
    # arithmetic={{"accumulate": "float32"}},  # how it rounds, where that differs; a looser one is a weaker claim
)
def {function}{call}:
    """{doc}"""
    # Replace this line by a call of your own code. A keyword that it does not take: leave it out of the signature,
    # then nothing is held against it.
    return assay.get("{name}", "reference")({arguments})
'''

TEST = '''"""Runs the specification of `{name}` on the adapter beside this file: plain `pytest`, also with -k, -n and --lf."""
from __future__ import annotations

from pathlib import Path

import assay

# A file is run in a process of its own, where a crash costs one case; a function or module would run in pytest's.
test_{name} = assay.conformance("{name}", Path(__file__).with_name("{file}"), profile="quick")
'''


def write(name: str, folder: Path) -> list[Path]:
    """Write adapter and test; nothing is overwritten."""
    kind = kind_named(name)
    texts = {f"assay_{name}.py": _adapter(kind), f"test_assay_{name}.py": _test(kind)}
    for file in texts:
        if os.path.lexists(folder / file):
            raise UsageError(f"out={folder} has {file} already; move it away, or give another folder with --out")
    return [write_text(folder / file, text) for file, text in texts.items()]


def _adapter(kind: Kind) -> str:
    choices = [name for name in kind.conventions if name in conventions.CONVENTIONS]
    example = f'"{choices[0]}": "{conventions.CONVENTIONS[choices[0]].values[0]}"' if choices else ""
    values = "; ".join(f"{name}: {', '.join(conventions.CONVENTIONS[name].values)}" for name in choices)
    features = sorted(kind.features)
    return ADAPTER.format(
        summary=kind.summary, name=kind.name, file=f"assay_{kind.name}.py", function=kind.name, call=_call(kind),
        dtypes=", ".join(f'"{dtype}"' for dtype in DEFAULT_DTYPES), lacks=f'"{features[0]}"', features=" ".join(features),
        conventions=example, values=values or "none", doc=f"Takes what the contract gives: {', '.join(kind.names) or 'nothing'}.",
        arguments=", ".join([*kind.arguments, *(f"{name}={name}" for name in kind.options)]))


def _call(kind: Kind) -> str:
    """The signature: what has no default is required here too."""
    options = [name if default is REQUIRED else f"{name}={default!r}" for name, default in kind.options.items()]
    return "(" + ", ".join([*kind.arguments, *(["*", *options] if options else [])]) + ")"


def _test(kind: Kind) -> str:
    return TEST.format(name=kind.name, file=f"assay_{kind.name}.py")
