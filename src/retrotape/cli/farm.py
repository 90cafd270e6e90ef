"""`retrotape farm`: one query over many saved tapes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import click

from retrotape.cli._arrays import write_arrays
from retrotape.cli._start import start_tensorflow
from retrotape.cli._text import number, print_json, printable, show_lines, size, table
from retrotape.cli._verbs import DEBUG, Failure, check_output, json_option
from retrotape.errors import FarmError, MissingPackageError, NoTapesError

_SHOWN = 20  # tapes that failed, in the table; JSON has all


@click.group(subcommand_metavar="QUERY [ARGS]...")
def farm() -> None:
    """Compute one query over many saved tapes, in one process or many.

    What a farm computes is written to --work in chunks: after a kill, of whatever, the same command goes on.
    """


@farm.command()
@click.argument("pattern", metavar="GLOB")
@click.argument("target")
@click.argument("sources", nargs=-1, metavar="[SOURCE]...")
@click.option("-o", "--output", type=click.Path(), callback=check_output, help="Write to a .npz or .safetensors.")
@click.option(
    "--reduce", type=click.Choice(["sum", "mean", "each"]), default="sum", show_default=True, help="What to print."
)
@click.option("--workers", type=click.IntRange(1), metavar="N", help="Compute in N processes.")
@click.option("--dask", metavar="ADDRESS", help="Compute on the Dask cluster of this scheduler.")
@click.option("--ray", is_flag=True, help="Compute on Ray: the cluster in RAY_ADDRESS, or this machine.")
@click.option(
    "--work", type=click.Path(file_okay=False), help="Keep partial results in this folder, and go on from them."
)
@click.option("--chunk", type=click.IntRange(1), metavar="N", help="Tapes in one unit of work.  [default: 16]")
@click.option("--continue", "go_on", is_flag=True, help="Leave out tapes that fail, and list them.")
@click.option("--duplicates", is_flag=True, help="Count a tape that several paths lead to as often.")
@click.option("--through-updates", is_flag=True, help="Let paths pass through assignments of variables.")
@click.option("--isolate", is_flag=True, help="Run each tape in a separate process, for untrusted files.")
@json_option
def grad(
    pattern: str,
    target: str,
    sources: tuple[str, ...],
    output: str | None,
    reduce: str,
    workers: int | None,
    dask: str | None,
    ray: bool,
    work: str | None,
    chunk: int | None,
    go_on: bool,
    duplicates: bool,
    through_updates: bool,
    isolate: bool,
    as_json: bool,
) -> None:
    """Print the gradient of TARGET over all tapes that match GLOB.

    Quote GLOB, so that the shell does not expand it: "steps/*.tape". TARGET and SOURCE are names on each tape, or
    unique endings of them. Without SOURCE, gradients are taken with respect to every trainable variable. Sums are in
    double precision. A missing gradient is not written; a sparse one is written as a dense array. With --reduce each,
    the norm of each tape's gradient is printed, and arrays are named TAPE:SOURCE.
    """
    if sum((workers is not None, dask is not None, ray)) > 1:
        raise click.UsageError("--workers, --dask and --ray exclude each other. Give one of them.")
    start_tensorflow()
    # Takes seconds: all checks that do not need it come first.
    from retrotape.distribute import farm as farms

    options: dict[str, Any] = {"through_updates": through_updates, "work": work}
    options["on_error"] = "continue" if go_on else "stop"
    options["duplicates"] = "allow" if duplicates else "raise"
    options["load"] = {"isolate": True} if isolate else None
    if chunk is not None:
        options["chunk"] = chunk
    with ExitStack() as stack, _options_of_the_shell():
        executor = workers if workers is not None else _cluster(stack, dask, ray)
        found = farms.backward(pattern, target, list(sources) or None, reduce=reduce, executor=executor, **options)  # type: ignore[call-overload]
    about = {"pattern": pattern, "target": target, "reduce": reduce}
    show = _show_each if reduce == "each" else _show_total
    show(found, about, output, as_json)


@contextmanager
def _options_of_the_shell() -> Iterator[None]:
    """Let errors name the option of the command line, not the argument of the function."""
    try:
        yield
    except (FarmError, NoTapesError) as error:
        if os.environ.get(DEBUG):
            raise
        text = str(error).replace("listed in `failed`: ", "listed: ").replace('`on_error="continue"`', "`--continue`")
        text = text.replace('`duplicates="allow"`', "`--duplicates`")
        raise Failure("retrotape farm", text.replace("`work=`", "--work").replace("`chunk=`", "--chunk")) from error


def _cluster(stack: ExitStack, dask: str | None, ray: bool) -> Any:
    """Return the client of a cluster, which is closed with the stack; None if there is none."""
    if dask is None:
        return "ray" if ray else None
    try:
        from distributed import Client
    except ImportError as error:
        raise MissingPackageError("A farm on Dask", "distributed", "dask") from error
    return stack.enter_context(Client(dask, timeout=30))


def _arrays(grads: Any, prefix: str = "") -> dict[str, Any]:
    from retrotape.cli._gradients import dense

    return {f"{prefix}{key}": dense(grad) for key, grad in grads.items() if grad is not None}


def _show_total(total: Any, about: dict[str, Any], output: str | None, as_json: bool) -> None:
    from retrotape.cli._gradients import print_gradients, row_of, with_printable_names

    rows = [row_of(total, key) for key in total.keys()]
    written = None if output is None else write_arrays(output, _arrays(total))
    if as_json:
        about |= {"tapes": total.count, "failed": total.failed, "norm": number(float(total.norm()))}
        print_json({**about, "gradients": rows, "output": output, "bytes": written})
        return
    print_gradients(with_printable_names(total), about["target"], rows)
    show_lines(f"{about['reduce']} over {total.count:,} tapes")
    _show_rest(total.failed, output, written)


def _show_each(results: Any, about: dict[str, Any], output: str | None, as_json: bool) -> None:
    rows, arrays = [], {}
    for name, grads in zip(results.names, results, strict=True):
        if name not in results.failed:
            rows.append({"tape": name, "norm": number(float(grads.norm())), "missing": list(map(str, grads.missing))})
            if output is not None:
                arrays.update(_arrays(grads, f"{name}:"))
    written = None if output is None else write_arrays(output, arrays)
    if as_json:
        print_json({**about, "tapes": rows, "failed": results.failed, "output": output, "bytes": written})
        return
    cells = [(row["tape"], f"{float(row['norm']):.4g}", ", ".join(row["missing"])) for row in rows]
    show_lines(table(["tape", "norm", "missing"], cells, numbers=["norm"]))
    _show_rest(results.failed, output, written)


def _show_rest(failed: dict[str, str], output: str | None, written: int | None) -> None:
    if failed:
        show_lines(f"{len(failed):,} failed:", table(["tape", "error"], list(failed.items())[:_SHOWN]))
        if len(failed) > _SHOWN:
            show_lines(f"… and {len(failed) - _SHOWN:,} more")
    if output is not None and written is not None:
        show_lines(f"written to {printable(output)}, {size(written)}")
