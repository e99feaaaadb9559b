"""The pytest plugin: `pytest --impl kernels.py` runs the specification on an implementation, one item a case.

Loaded in everybody's pytest, so it imports neither torch nor the specification before it is asked to run it, and adds no
option but `--assay-…`. A run that gives `--impl` (or `--assay-impl`), or names a file of the specification, collects the
specification through collectors of its own: its files are known by their one name, `assay.spec.…`, and never imported as
somebody's test modules. Elsewhere this plugin does nothing.
"""
from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from assay.run.plan import CaseSpec
    from assay.run.units import Units

SPEC = Path(__file__).resolve().parent.parent / "spec"  # a clone; in an installed package it lies beside us
if not (SPEC / "conduct.py").is_file():
    SPEC = Path(__file__).resolve().parent / "spec"
UNITS = pytest.StashKey["Units"]()
# name, what add_option takes, help; several values may be given where the default is a list
OPTIONS: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("kind", {"default": None}, "only this kind; what an undeclared object is"),
    ("device", {"action": "append", "default": None}, "auto, cpu or cuda; may be repeated"),
    ("dtype", {"action": "append", "default": None}, "only these; may be repeated"),
    ("profile", {"default": "standard"}, "quick, standard or deep"),
    ("seed", {"type": int, "default": 0}, "the same seed draws the same examples"),
    ("only", {"action": "append", "default": None}, "a statement, property or case; may be repeated"),
    ("shard", {"default": None}, "I/N: the I-th of N parts of the plan"),
    ("timeout", {"type": float, "default": 60.0}, "seconds for one call, or the import"),
    ("isolate", {"default": "auto"}, "auto, always or never"),
    ("waivers", {"default": None}, "a file of known failures"),
)

if "assay.spec" not in sys.modules:
    pytest.register_assert_rewrite("assay.spec")


# ------------------------------------------------------------------------------------------------ options
def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """The long options always; the short `--impl` only in a run that gives it: other plugins may have one too."""
    group = parser.getgroup("assay", "assay: the specification of Transformer components")
    short = ["--impl"] if _gives_impl(pluginmanager) else []
    group.addoption(*short, "--assay-impl", dest="assay_impl", action="append", default=None, metavar="TARGET",
                    help="run the specification on a file, file:NAME, module:OBJECT or a built-in implementation")
    for name, how, text in OPTIONS:
        group.addoption(f"--assay-{name}", dest=f"assay_{name}", help=text, **how)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config, parser: pytest.Parser) -> Iterator[None]:
    """The other short options once all plugins and conftest files have added theirs: what is taken stays theirs."""
    given = _gives_impl(early_config.pluginmanager)
    clone = SPEC.parent
    if given and clone in (early_config.invocation_params.dir, *early_config.invocation_params.dir.parents):
        # Before it knew `--impl`, pytest took its value for a path to collect, and the file's folder for the root.
        early_config._rootpath = clone  # type: ignore[attr-defined]
    result = yield
    if given:
        group = parser.getgroup("assay")
        for name, how, text in OPTIONS:
            try:
                group.addoption(f"--{name}", dest=f"assay_{name}", help=f"as --assay-{name}: {text}", **how)
            except (ValueError, argparse.ArgumentError):
                continue
    return result


def _gives_impl(pluginmanager: pytest.PytestPluginManager) -> bool:
    """Whether `--impl` is among the arguments of this run."""
    config: Any = pluginmanager.get_plugin("pytestconfig")
    given = [str(argument) for argument in config.invocation_params.args]
    return any(argument == "--impl" or argument.startswith("--impl=") for argument in given)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """With an implementation and no path, the specification is what is run."""
    named = config.args_source is pytest.Config.ArgsSource.ARGS and config.args
    if config.option.assay_impl and not named:
        config.args = [str(SPEC)]


def pytest_sessionstart(session: pytest.Session) -> None:
    """Usage is settled before anything is collected."""
    if session.config.option.assay_impl and not session.config.option.help:
        units = _units(session.config)
        if session.config.pluginmanager.hasplugin("dsession"):  # the workers of xdist do the rest, each with processes of its own
            units.close()


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the processes of this run."""
    units = config.stash.get(UNITS, None)
    if units is not None:
        units.close()


def _units(config: pytest.Config) -> Units:
    """The plan of this run; made once a process."""
    if UNITS not in config.stash:
        from assay.errors import AssayError
        from assay.run.requests import request
        from assay.run.units import Units

        option = config.option
        try:
            units = Units(request(
                [_from(config, name) for name in option.assay_impl or ("reference",)], kind=option.assay_kind,
                devices=option.assay_device, dtypes=option.assay_dtype, only=option.assay_only,
                profile=option.assay_profile, seed=option.assay_seed, shard=option.assay_shard,
                timeout=option.assay_timeout, isolate=option.assay_isolate, workers=1, command="pytest --impl",
                waivers=Path(option.assay_waivers) if option.assay_waivers else None))
            units.plan()
        except AssayError as error:
            raise pytest.UsageError(str(error)) from None
        config.stash[UNITS] = units
    return config.stash[UNITS]


def _from(config: pytest.Config, target: str) -> str:
    """A file by its whole path: a worker of xdist may stand in another folder."""
    place = config.invocation_params.dir / target.rpartition(":")[0] if ".py:" in target else config.invocation_params.dir / target
    if not place.is_file():
        return target
    return f"{place}:{target.rpartition(':')[2]}" if ".py:" in target else str(place)


# ------------------------------------------------------------------------------------------------ collection
def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """The folder of the specification is a folder, not a package of tests: nothing imports its `__init__.py`."""
    return pytest.Dir.from_parent(parent, path=path) if _inside(path) else None


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """A file of the specification, where it was not named itself (then `pytest_pycollect_makemodule` is asked)."""
    if not _inside(file_path) or file_path.suffix != ".py" or parent.session.isinitpath(file_path):
        return None
    return _specification(parent, file_path) if _wanted(parent.config) else None


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """A file of the specification that was named: ours, so that it is not imported under a second name."""
    return _specification(parent, module_path) if _inside(module_path) else None


def _specification(parent: pytest.Collector, path: Path) -> pytest.Collector:
    """The collector of a file; its node id is the same wherever pytest is started."""
    return SpecificationFile.from_parent(parent, path=path, nodeid=f"spec/{path.name}")


def _inside(path: Path) -> bool:
    """Whether a path is the specification's folder, or in it."""
    return path == SPEC or SPEC in path.parents


def _wanted(config: pytest.Config) -> bool:
    """Whether this run is about the specification: an implementation is given, or its folder is named."""
    if config.option.assay_impl:
        return True
    named = (Path(argument.partition("::")[0]) for argument in config.args)
    return any(_inside((config.invocation_params.dir / path).resolve()) for path in named)


class SpecificationFile(pytest.File):
    """The cases of the properties that one file of the specification holds."""

    def collect(self) -> Iterable[pytest.Item]:
        """One item a case."""
        units = _units(self.config)
        planned = units.plan()
        module = f"assay.spec.{self.path.stem}"
        for case in units.mine:
            function = planned.properties[case.property].function
            if function.__module__ == module:
                yield CaseItem.from_parent(self, name=_name(case), case=case)


def _name(case: CaseSpec) -> str:
    """`future_is_invisible[mine-cpu-float32]`; characters that end a node id's part are left out of it."""
    name = f"{case.property.partition('/')[2]}[{case.implementation}-{case.device}-{case.dtype}]"
    return name.replace("::", ":").replace("/", "_")


class CaseItem(pytest.Item):
    """One case."""

    def __init__(self, *, case: CaseSpec | None = None, known: Mapping[str, Any] | None = None, **more: Any) -> None:
        super().__init__(**more)
        self._case, self._known = case, known
        if case is not None:
            self.keywords[case.kind] = self.keywords[case.dtype] = True

    def runtest(self) -> None:
        """Judge the case, and raise what pytest calls its status."""
        from assay.report.failure import failure_text
        from assay.run.api import outcome_of

        result = self._known if self._case is None else _units(self.config).result(self._case)
        assert result is not None
        self.user_properties += [("status", result["status"]), ("statements", ", ".join(result["statements"]))]
        outcome = outcome_of(result["status"])
        if outcome == "skipped":
            pytest.skip(f"{result['status']}: {result['message']}")
        if outcome == "failed":
            pytest.fail(failure_text(result), pytrace=False)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """File and line of the property, and the item's name."""
        if self._case is None:
            return self.path, None, self.name
        function = _units(self.config).plan().properties[self._case.property].function
        return self.path, function.__code__.co_firstlineno - 1, self.name


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """What belongs to no property: a file that died at its import, a waiver that is stale."""
    units = config.stash.get(UNITS, None)
    if units is None or not _wanted(config):
        return
    parent = pytest.Dir.from_parent(session, path=SPEC)
    for result in (*units.died(), *units.findings()):
        items.append(CaseItem.from_parent(parent, name=result["id"].replace("/", "_"), known=result))


def pytest_report_header(config: pytest.Config) -> str | None:
    """What is being checked."""
    units = config.stash.get(UNITS, None)
    if units is None:
        return None
    names = dict.fromkeys(f"{made.kind} {made.name}" for made in units.declarations())
    return f"assay: {', '.join(names) or 'nothing'}, profile {config.option.assay_profile}, {len(units.mine)} cases"
