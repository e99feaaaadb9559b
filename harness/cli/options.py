"""Options that several commands share."""
from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Targets = Annotated[list[str] | None, typer.Argument(
    metavar="[TARGET]...",
    help="kernels.py, kernels.py:NAME, package.module:OBJECT, hf:MODEL_TYPE, hf:./FOLDER, or the name of a built-in one")]
All = Annotated[bool, typer.Option("--all", help="Everything that is built in.")]
Kind = Annotated[str | None, typer.Option("--kind", metavar="KIND", help="Only this kind; what an undeclared object is.")]
Device = Annotated[list[str] | None, typer.Option("--device", metavar="DEVICE", help="auto, cpu or cuda; may be repeated.")]
Dtype = Annotated[list[str] | None, typer.Option("--dtype", metavar="DTYPE", help="Only these; may be repeated.")]
Profile = Annotated[str, typer.Option(
    "--profile", metavar="PROFILE", help="Examples drawn a case: quick 5, standard 20, deep 1,000.")]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="The same seed draws the same examples.")]
Only = Annotated[list[str] | None, typer.Option(
    "--only", metavar="ID", help="A statement, property or case; may be repeated.")]
Workers = Annotated[int | None, typer.Option("--workers", metavar="N", help="Judges at a time; one a CPU by default.")]
Shard = Annotated[str | None, typer.Option("--shard", metavar="I/N", help="The I-th of N parts of the plan, from 1.")]
Timeout = Annotated[float, typer.Option("--timeout", metavar="S", help="Seconds for one call, or the import.")]
Isolate = Annotated[str, typer.Option("--isolate", metavar="WHEN", help="auto, always or never: a process for the implementation.")]
Waivers = Annotated[Path | None, typer.Option("--waivers", metavar="FILE", help="Known failures.")]
WriteWaivers = Annotated[bool, typer.Option("--write-waivers", help="Propose waivers next to the report.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the interrupted run in --out.")]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the report.")]
Json = Annotated[bool, typer.Option("--json", help="JSON on stdout, all else on stderr.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="The verdict alone.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Tracebacks of errors.")]
Parts = Annotated[bool, typer.Option("--parts", help="A model's parts one by one, and what is not recognised; no report.")]
Inside = Annotated[str | None, typer.Option(
    "--inside", metavar="MODEL", help="Check a model, hf:TYPE or hf:./FOLDER, with the target's attention inside it.")]
