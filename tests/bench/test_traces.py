import dataclasses
from pathlib import Path

import pytest

from infopt.bench.traces import TraceRequest, read_trace, scale_trace
from infopt.bench.workloads import build_workload
from infopt.errors import WorkloadError

TRACES = Path(__file__).parents[2] / "config" / "traces"
AZURE = TRACES / "azure_code_head.csv"
MOONCAKE = TRACES / "mooncake_synthetic_head.jsonl"


def write(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_azure_csv() -> None:
    trace = read_trace(AZURE)
    assert len(trace) == 200
    first, second = trace[:2]
    assert (first.arrival_s, first.num_prompt_tokens, first.num_output_tokens) == (0, 4808, 10)
    assert second.arrival_s == pytest.approx(0.052)
    assert second.block_ids == ()


def test_mooncake_jsonl() -> None:
    trace = read_trace(MOONCAKE)
    assert len(trace) == 60
    assert (trace[0].num_prompt_tokens, trace[0].num_output_tokens) == (40160, 6)
    assert trace[0].block_ids == tuple(range(79))
    assert trace[2].arrival_s == pytest.approx(0.040)


def test_limit_reads_the_head() -> None:
    assert read_trace(AZURE, limit=5) == read_trace(AZURE)[:5]


def test_equal_block_ids_become_equal_tokens() -> None:
    """Two requests share tokens exactly as far as they share ids, at the scaled block size."""
    scale, block = 1 / 32, 16
    spec = {"kind": "trace", "path": MOONCAKE, "length_scale": scale}
    requests = build_workload(spec, vocab_size=50_000, seed=0)
    trace = read_trace(MOONCAKE)
    num_shared = 0
    for i, a in enumerate(trace):
        for j in range(i):
            expected = block * common_prefix(a.block_ids, trace[j].block_ids)
            ids_a, ids_b = (requests[k].prompt_token_ids for k in (i, j))
            shared = common_prefix(ids_a, ids_b)
            assert shared == min(expected, len(ids_a), len(ids_b))
            num_shared += shared > 0
            assert (shared > 0) <= (requests[i].prefix_group == requests[j].prefix_group)
    assert num_shared > 0


def common_prefix(a, b) -> int:
    count = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        count += 1
    return count


def test_scaling_keeps_shares_and_gaps() -> None:
    trace = [TraceRequest(0, 1024, 100, (1, 2)), TraceRequest(2, 600, 3, (1, 3))]
    scaled = scale_trace(trace, time_scale=0.5, length_scale=0.25, output_scale=0.1)
    assert [r.arrival_s for r in scaled] == [0, 1]
    assert [r.num_prompt_tokens for r in scaled] == [256, 150]
    assert [r.num_output_tokens for r in scaled] == [10, 1]
    assert {r.block_tokens for r in scaled} == {128}


def test_scaled_prompts_stay_covered_by_their_blocks() -> None:
    trace = [TraceRequest(0, n, 1, tuple(range(-(-n // 512)))) for n in range(1, 5000, 37)]
    for scale in (0.9, 1 / 3, 0.01, 0.001):
        for request in scale_trace(trace, length_scale=scale):
            assert request.num_prompt_tokens >= 1
            assert request.num_prompt_tokens <= request.block_tokens * len(request.block_ids)


def test_requests_that_are_too_long(caplog: pytest.LogCaptureFixture) -> None:
    trace = [TraceRequest(0, 90, 20), TraceRequest(1, 50, 20), TraceRequest(2, 10, 300)]
    with pytest.raises(WorkloadError, match="Request 0 of the trace has 110 tokens"):
        scale_trace(trace, max_total_tokens=100)
    assert scale_trace(trace, max_total_tokens=100, too_long="drop") == [trace[1]]
    clipped = scale_trace(trace, max_total_tokens=100, too_long="clip")
    assert [(r.num_prompt_tokens, r.num_output_tokens) for r in clipped] == [
        (80, 20), (50, 20), (10, 90)
    ]  # fmt: skip
    assert "2 of 3 trace requests had more than 100 tokens" in caplog.text


def test_dropping_everything_is_refused() -> None:
    spec = {"kind": "trace", "path": AZURE, "max_total_tokens": 2, "too_long": "drop"}
    with pytest.raises(WorkloadError, match="at most 2 tokens"):
        build_workload(spec, vocab_size=10)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("2023-11-16 18:17:04,12", "2 fields instead of 3"),
        ("yesterday,12,3", "TIMESTAMP 'yesterday' is not a date and time"),
        ("2023-11-16 18:17:04,twelve,3", "ContextTokens must be a whole number >= 1, got 'twelve'"),
        ("2023-11-16 18:17:04,12,0", "GeneratedTokens must be a whole number >= 1, got '0'"),
        ("2023-11-16 18:17:04,12,-3", "GeneratedTokens"),
        ("2023-11-16 18:17:04,1.5,3", "ContextTokens"),
    ],
)
def test_a_malformed_azure_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    header = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,5,1\n\n"
    path = write(tmp_path, "t.csv", header + line + "\n")
    with pytest.raises(WorkloadError, match=r"t\.csv, line 4: ") as caught:
        read_trace(path)
    assert message in str(caught.value)
    assert caught.value.value == f"{path}:4"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"timestamp": 1,', "not JSON"),
        ("[1]", "not a JSON object"),
        ('{"timestamp": 1, "input_length": 5, "output_length": 1}', "no 'hash_ids'"),
        ('{"timestamp": -1, "input_length": 5, "output_length": 1, "hash_ids": [1]}', "timestamp"),
        ('{"timestamp": 1, "input_length": "x", "output_length": 1, "hash_ids": []}',
         "input_length"),
        ('{"timestamp": 1, "input_length": 5, "output_length": 1, "hash_ids": ["a"]}', "hash_ids"),
        ('{"timestamp": 1, "input_length": 513, "output_length": 1, "hash_ids": [1]}',
         "1 hash_ids for 513 tokens, which are 2 blocks"),
    ],
)  # fmt: skip
def test_a_malformed_mooncake_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    good = '{"timestamp": 1, "input_length": 5, "output_length": 1, "hash_ids": [1]}\n'
    path = write(tmp_path, "t.jsonl", good + line + "\n")
    with pytest.raises(WorkloadError, match=r"t\.jsonl, line 2: ") as caught:
        read_trace(path)
    assert message in str(caught.value)


def test_other_broken_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"ending '.txt'"):
        read_trace(write(tmp_path, "t.txt", ""))
    with pytest.raises(WorkloadError, match="line 1: no column 'GeneratedTokens'"):
        read_trace(write(tmp_path, "h.csv", "TIMESTAMP,ContextTokens\n"))
    with pytest.raises(WorkloadError, match="holds no requests"):
        read_trace(write(tmp_path, "e.jsonl", "\n"))
    days = "".join(f"2023-01-0{day} 00:00:00,1,1\n" for day in (2, 1))
    back = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + days
    with pytest.raises(WorkloadError, match="goes back in time at request 1"):
        read_trace(write(tmp_path, "b.csv", back))
    (tmp_path / "x.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(WorkloadError, match="not UTF-8"):
        read_trace(tmp_path / "x.csv")


def test_bad_factors_are_refused() -> None:
    trace = [dataclasses.replace(TraceRequest(0, 5, 5))]
    with pytest.raises(WorkloadError, match="time_scale must be a positive number, got 0"):
        scale_trace(trace, time_scale=0)
    with pytest.raises(WorkloadError, match="too_long='shorten'"):
        scale_trace(trace, too_long="shorten")
