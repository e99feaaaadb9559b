"""The command line. Each command loads what it needs when it runs: `assay --help` loads no torch."""
from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli import options
from assay.errors import AssayError, UsageError
from assay.run import requests
from assay.run.zygote_process import Zygote, zygote_needed

if TYPE_CHECKING:
    from assay.report.jsonl import Report
    from assay.report.speed import Speed
    from assay.run.bench import BenchReport

USAGE, HARNESS = 2, 4
REPORT = Path("assay-report")

app = typer.Typer(
    name="assay", no_args_is_help=False, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
    help="Tells whether a Transformer implementation is right: an executable specification with derived tolerances.",
    epilog="Example: assay check kernels.py --profile quick")


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Tells whether a Transformer implementation is right: an executable specification with derived tolerances."""
    if version:
        import assay

        print(assay.version)
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command(epilog="Example: assay check kernels.py:attention --profile quick --dtype float32")
def check(
    targets: options.Targets = None, all_: options.All = False, kind: options.Kind = None, device: options.Device = None,
    dtype: options.Dtype = None, profile: options.Profile = "standard", seed: options.Seed = 0, only: options.Only = None,
    workers: options.Workers = None, shard: options.Shard = None, timeout: options.Timeout = 60.0,
    isolate: options.Isolate = "auto", waivers: options.Waivers = None, write_waivers: options.WriteWaivers = False,
    resume: options.Resume = False, out: options.Out = REPORT, json: options.Json = False, quiet: options.Quiet = False,
    verbose: options.Verbose = False, parts: options.Parts = False, inside: options.Inside = None,
) -> int:
    """Check implementations and write a report.

    Exit code: 0 conformant, 1 non-conformant, 2 wrong usage, 3 inconclusive, 4 a fault of assay itself.
    """
    if bool(targets) == all_:
        raise UsageError("targets= must name a file, an object or a built-in implementation, or be --all alone")
    asked: dict[str, Any] = {
        "kind": kind, "devices": device, "dtypes": dtype, "only": only, "profile": profile, "seed": seed, "timeout": timeout,
        "workers": workers, "shard": shard, "isolate": isolate, "waivers": waivers, "command": command_line()}
    if inside is not None:
        targets = requests.inside(targets or (), inside)
    if parts:
        from assay.cli.parts import show_parts

        return show_parts(requests.request(targets or (), **asked), as_json=json)
    with Zygote() if zygote_needed(isolate, workers) else nullcontext() as zygote:  # it imports torch while we do
        from assay.cli.checking import check

        return check(requests.request(targets or (), **asked), out, resume=resume, as_json=json, quiet=quiet,
                     write_waivers=write_waivers, zygote=zygote)


@app.command("list", epilog="Example: assay list properties --kind attention")
def list_(
    what: Annotated[str, typer.Argument(metavar="WHAT", help="statements, properties, kinds or implementations.")],
    kind: options.Kind = None, json: options.Json = False, verbose: options.Verbose = False,
) -> None:
    """List statements, properties, kinds or implementations."""
    from assay.run.catalogue import listing

    show(listing(requests.one_of("what", what, ("statements", "properties", "kinds", "implementations")), kind), json)


@app.command(epilog="Example: assay plan kernels.py --dtype float32")
def plan(
    targets: options.Targets = None, all_: options.All = False, kind: options.Kind = None, device: options.Device = None,
    dtype: options.Dtype = None, only: options.Only = None, shard: options.Shard = None, timeout: options.Timeout = 60.0,
    isolate: options.Isolate = "auto", json: options.Json = False, verbose: options.Verbose = False,
) -> None:
    """Say what a check would run, what it would not, and why."""
    if bool(targets) == all_:
        raise UsageError("targets= must name a file, an object or a built-in implementation, or be --all alone")
    from assay.cli.planning import plan_of, plan_text
    from assay.run import events

    made = plan_of(requests.request(targets or (), kind=kind, devices=device, dtypes=dtype, only=only, shard=shard,
                                   timeout=timeout, isolate=isolate, workers=1))
    print(events.dumps(made) if json else plan_text(made))


@app.command(epilog="Example: assay explain MSK-1")
def explain(
    id: Annotated[str, typer.Argument(metavar="ID", help="A statement, property or kind.")],
    example: Annotated[bool, typer.Option("--example/--no-example", help="Run a planted fault to show a failure.")] = True,
    json: options.Json = False, verbose: options.Verbose = False,
) -> None:
    """Explain a statement, property or kind: why it holds, where its tolerance comes from, how it fails."""
    from assay.run.catalogue import explain

    show(explain(id.partition("[")[0], example=example), json)


@app.command(epilog="Example: assay replay assay-report/report.jsonl")
def replay(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="What was checked, or a report.jsonl.")],
    only: Annotated[str | None, typer.Option("--only", metavar="CASE", help="The id of one case.")] = None,
    example: Annotated[str | None, typer.Option("--example", metavar="JSON", help="The stored example.")] = None,
    script: Annotated[Path | None, typer.Option(
        "--script", metavar="PATH", help="Write a script of torch alone that shows the failure.")] = None,
    kind: options.Kind = None, timeout: options.Timeout = 60.0, isolate: options.Isolate = "auto",
    json: options.Json = False, verbose: options.Verbose = False,
) -> int:
    """Run stored counterexamples again: one, or all those of a report. Exit code 0 when none fails, else 1."""
    from assay.cli.replaying import replay

    request = requests.request((target,), kind=kind, timeout=timeout, isolate=isolate, workers=1, command=command_line())
    return replay(request, target, only, example, as_json=json, script=script)


@app.command(epilog="Example: assay doctor --kind softmax")
def doctor(
    kind: Annotated[list[str] | None, typer.Option("--kind", metavar="KIND", help="Only these; may be repeated.")] = None,
    only: options.Only = None, profile: options.Profile = "quick", workers: options.Workers = None,
    timeout: options.Timeout = 120.0,
    seed: Annotated[list[int] | None, typer.Option("--seed", metavar="N", help="May be repeated.")] = None,
    json: options.Json = False, verbose: options.Verbose = False,
) -> int:
    """Plant faults: is every property able to fail, here and now, and does no right implementation fail?"""
    from assay.contract.kinds import kind as kind_named
    from assay.run.doctor import run

    for name in kind or ():
        kind_named(name)
    report = run(kind or None, seeds=tuple(requests.at_least("seed", one, 0) for one in seed or (0,)), only=tuple(only or ()),
                 profile=requests.one_of("profile", profile, requests.PROFILES), timeout=requests.seconds(timeout),
                 workers=requests.at_least("workers", workers if workers is not None else requests.cpus(), 1))
    show(report, json)
    return report.exit_code


@app.command(epilog="Example: assay diff old/report.jsonl new/report.jsonl --fail-on regressions")
def diff(
    old: Annotated[Path, typer.Argument(metavar="A", help="The earlier report.jsonl, or its folder.")],
    new: Annotated[Path, typer.Argument(metavar="B", help="The later one.")],
    fail_on: Annotated[list[str] | None, typer.Option(
        "--fail-on", metavar="CATEGORY", help="Exit with 1 if there are any: regressions, weakened, ..., any.")] = None,
    rename: Annotated[list[str] | None, typer.Option(
        "--rename", metavar="OLD=NEW", help="A property or implementation that was renamed.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Markdown, for a pull request.")] = False,
    verbose: options.Verbose = False,
) -> int:
    """Compare two reports."""
    from assay.report import jsonl
    from assay.report.diff import diff

    pairs = [text.partition("=") for text in rename or ()]
    for before, _, after in pairs:
        if not before or not after:
            raise UsageError(f"rename={before} must be OLD=NEW")
    found = diff(jsonl.read(old), jsonl.read(new), {before: after for before, _, after in pairs})
    failed = found.fails_on(fail_on or ())
    print(found.markdown() if markdown else found.text())
    return 1 if failed else 0


@app.command(epilog="Example: assay merge shard-1 shard-2 --out assay-report")
def merge(
    reports: Annotated[list[Path], typer.Argument(metavar="REPORT...", help="A report.jsonl of each shard, or its folder.")],
    out: options.Out = REPORT, quiet: options.Quiet = False, verbose: options.Verbose = False,
) -> int:
    """Join the shards of one plan into one report; its exit code is that of the whole run.

    Timings beside the shards are not joined, as machines differ: `assay bench --report` times for the whole.
    """
    from assay.report import jsonl
    from assay.report.merge import merge

    return finish(merge([jsonl.read(path) for path in reports]), out, quiet)


@app.command(epilog="Example: assay report assay-report/report.jsonl --out html")
def report(
    source: Annotated[Path, typer.Argument(metavar="REPORT", help="A report.jsonl, or its folder.")] = REPORT,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Where to; beside it by default.")] = None,
    badges: Annotated[bool, typer.Option("--badge", help="A badge as well.")] = False,
    quiet: options.Quiet = False, verbose: options.Verbose = False,
) -> None:
    """Write report.html, summary.md and junit.xml from a report.jsonl."""
    from assay.report import jsonl, speed

    read, folder = jsonl.read(source), source if source.is_dir() else source.parent
    finish(read, out or folder, quiet, badges=badges, timed=speed.read(folder, read))


@app.command(epilog="Example: assay document assay-report --out site --implementation sdpa")
def document(
    source: Annotated[Path, typer.Argument(metavar="REPORT", help="A report.jsonl, or its folder.")] = REPORT,
    implementation: Annotated[str | None, typer.Option(
        "--implementation", metavar="NAME", help="Whose statuses; by default the one with the most kinds.")] = None,
    findings: Annotated[Path | None, typer.Option("--findings", metavar="FOLDER", help="Markdown pages, a finding each.")] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the site.")] = Path("assay-document"),
    verbose: options.Verbose = False,
) -> None:
    """Write the document that runs: all statements in order, each with its status in a report; a page for each finding."""
    from assay.cli.documenting import write

    print(f"wrote {write(source, implementation, findings, out)}")


@app.command(epilog="Example: assay bundle assay-report --out evidence.zip")
def bundle(
    source: Annotated[Path, typer.Argument(metavar="REPORT", help="A report.jsonl, or its folder.")] = REPORT,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The archive to write.")] = Path("assay-bundle.zip"),
    waivers: options.Waivers = None, verbose: options.Verbose = False,
) -> None:
    """Pack a report with its plan, seeds, environment, waivers and timings into one archive, with a hash of each."""
    from assay.cli.bundling import bundle

    bundle(source, out, waivers)


@app.command(epilog="Example: assay verify evidence.zip --sample 3")
def verify(
    source: Annotated[Path, typer.Argument(metavar="BUNDLE", help="What `assay bundle` wrote.")],
    sample: Annotated[int, typer.Option("--sample", metavar="N", help="Cases to run again; 0: the archive alone.")] = 3,
    timeout: options.Timeout = 60.0, isolate: options.Isolate = "auto", verbose: options.Verbose = False,
) -> int:
    """Hold a bundle against its hashes and sums, and run some cases again. Exit code 0 when all agrees, else 1."""
    from assay.cli.bundling import verify

    count = requests.at_least("sample", sample, 0)
    return verify(source, count, requests.request((), timeout=timeout, isolate=isolate, workers=1, command=command_line()))


@app.command(epilog="Example: assay trend reports --out trend.svg")
def trend(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Reports (*.jsonl), or folders that hold one each.")],
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="A chart as SVG.")] = None,
    verbose: options.Verbose = False,
) -> None:
    """Show how the reports in a folder went over time: a line each, and a chart."""
    from assay.cli.bundling import show_trend

    show_trend(folder, out)


@app.command(epilog="Example: assay audit transformers --only 'llama*'")
def audit(
    library: Annotated[str, typer.Argument(metavar="LIBRARY", help="Whose models: transformers.")],
    only: Annotated[list[str] | None, typer.Option(
        "--only", metavar="PATTERN", help="Model types that match, as in a shell; may be repeated.")] = None,
    workers: options.Workers = None, seed: options.Seed = 0,
    timeout: Annotated[float, typer.Option("--timeout", metavar="S", help="Seconds for one model type.")] = 120.0,
    out: options.Out = REPORT, json: options.Json = False, verbose: options.Verbose = False,
) -> int:
    """Try every model type of an installed library as a black box, each in a process of its own; write a table and a report.

    Exit code: 0 none fails, 1 any does, 2 wrong usage, 3 none could be built, 4 a fault of assay itself. Look into one with
    `assay check hf:TYPE`.
    """
    from assay.cli.auditing import run

    return run(library, only or (), workers=requests.at_least("workers", requests.cpus() if workers is None else workers, 1),
               timeout=requests.seconds(timeout), seed=requests.at_least("seed", seed, 0), out=out, command=command_line(),
               as_json=json)


@app.command(epilog="Example: assay new attention")
def new(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="What it is to implement.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to write to.")] = Path(),
    verbose: options.Verbose = False,
) -> None:
    """Write an adapter to start from, and a test for it."""
    from assay.cli.scaffold import write

    written = write(kind, out)
    print("\n".join(f"wrote {path}" for path in written))
    print(f"now: assay check {written[0]} --profile quick")


@app.command(epilog="Example: assay bench kernels.py:attention --dtype bfloat16")
def bench(
    targets: options.Targets = None, kind: options.Kind = None, dtype: options.Dtype = None, device: options.Device = None,
    rounds: Annotated[int, typer.Option("--rounds", metavar="N", help="How often each is timed, in turns.")] = 9,
    beside: Annotated[Path | None, typer.Option(
        "--report", metavar="REPORT", help="A report's folder: its page shows speed beside conformance.")] = None,
    json: options.Json = False, verbose: options.Verbose = False,
) -> None:
    """Time implementations against their peer, in turns: ratios, share of the machine's floor, growth of memory.

    A target is as in `assay check`, or the name of a kind: everything that is built in for it.
    """
    from assay.run import bench

    if not targets:
        raise UsageError("targets= must name a file, an object, a built-in implementation or a kind")
    if kind is not None:
        from assay.contract.kinds import kind as kind_named

        kind_named(kind)
    dtypes = [requests.one_of("dtype", one.removeprefix("torch."), requests.DTYPES) for one in dtype or ["float32"]]
    devices, count = [requests.device_named(one) for one in device or ["cpu"]], requests.at_least("rounds", rounds, 2)
    join = joining(beside)
    timed = bench.run(targets, kind=kind, dtypes=dtypes, devices=devices, rounds=count)
    show(timed, json)
    join(timed)


@app.command(epilog="Example: assay fuzz kernels.py --time 10m")
def fuzz(
    targets: options.Targets = None, time: Annotated[str, typer.Option("--time", metavar="SPAN", help="90s, 10m, 1.5h.")] = "1m",
    kind: options.Kind = None, device: options.Device = None, dtype: options.Dtype = None, profile: options.Profile = "standard",
    seed: options.Seed = 0, only: options.Only = None, workers: options.Workers = None, timeout: options.Timeout = 60.0,
    isolate: options.Isolate = "auto", out: options.Out = Path("assay-fuzz"), json: options.Json = False,
    verbose: options.Verbose = False,
) -> int:
    """Search for counterexamples, seed after seed, until the time is over.

    What is found is kept in --out and runs first the next time. Exit code 1 when anything fails, else 0.
    """
    if not targets:
        raise UsageError("targets= must name a file, an object or a built-in implementation")
    from assay.cli.fuzzing import fuzz

    return fuzz(requests.request(
        targets, kind=kind, devices=device, dtypes=dtype, only=only, profile=profile, seed=seed, timeout=timeout, workers=workers,
        isolate=isolate, command=command_line()), out, time, as_json=json)


# ------------------------------------------------------------------------------------------------ shared by commands
def show(made: Any, as_json: bool) -> None:
    """As a table where someone looks at it, as plain lines in a pipe, or as JSON."""
    from assay.run import events

    if as_json:
        print(events.dumps(events.strict(made.to_json(), 100_000)))
    elif hasattr(made, "lines") and not sys.stdout.isatty():
        print("\n".join(made.lines()))
    else:
        from rich.console import Console

        Console(markup=False, highlight=False, emoji=False).print(made)


def finish(report: Report, out: Path, quiet: bool, *, badges: bool = False, timed: Speed | None = None) -> int:
    """Render a report, show its last screen, give its exit code."""
    from assay.report.render import write_all
    from assay.report.terminal import Terminal

    write_all(report, out, badges=badges, timed=timed)
    Terminal(quiet=quiet).finish(report, out)
    return int(report.summary["exit_code"])


def joining(folder: Path | None) -> Callable[[BenchReport], None]:
    """What puts timings into the page of the report in this folder; the report is read, or refused, before anything is timed."""
    if folder is None:
        return lambda timed: None
    from assay.report import jsonl, render, speed

    place = folder if folder.is_dir() else folder.parent
    read = jsonl.read(folder)

    def join(timed: BenchReport) -> None:
        render.write_text(place / speed.FILE_NAME, speed.dumps(read, command_line(), timed.rows, timed.ended))
        render.write_all(read, place, timed=speed.read(place, read))
        print(f"speed beside conformance: {place / render.PAGE}", file=sys.stderr)

    return join


def command_line() -> str:
    """The command as it was given, for the report."""
    import shlex

    return shlex.join(["assay", *sys.argv[1:]])


# ------------------------------------------------------------------------------------------------ the console script
def main(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code. Whatever is wrong with how it was asked is one line, and 2."""
    complaint: Any = typer.BadParameter.__mro__[2]  # the base of all that is wrong with a command line, under any version
    verbose = "--verbose" in arguments or "-v" in arguments
    try:
        code = typer.main.get_command(app).main(args=list(arguments), prog_name="assay", standalone_mode=False)
        return int(code or 0)
    except UsageError as error:
        return complain(error, str(error), USAGE, verbose)
    except BrokenPipeError:  # whoever read our output has seen enough
        sys.stdout = None
        return 0
    except AssayError as error:
        return complain(error, f"a fault of assay itself: {error}", HARNESS, verbose)
    except Exception as error:  # noqa: BLE001 - the last boundary: an unforeseen fault must not look like a verdict
        if isinstance(error, complaint):
            return complain(error, f"{error.format_message()}; `assay --help` shows what there is", USAGE, verbose)
        said = f"a fault of assay itself: {type(error).__name__}: {error}; --verbose shows where"
        return complain(error, said, HARNESS, verbose)


def complain(error: BaseException, text: str, code: int, verbose: bool) -> int:
    """One line on stderr; a traceback only where it was asked for."""
    if verbose:
        traceback.print_exception(error)
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    print(f"assay: {line}", file=sys.stderr)
    return code


def run() -> None:
    """The console script."""
    code = main(sys.argv[1:])
    if sys.stdout is not None:
        sys.stdout.flush()
    sys.exit(code)
