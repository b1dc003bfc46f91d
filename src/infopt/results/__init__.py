"""Run records: one JSON file per run, checked on the way in and out, and tables made of them.

Writing, around a measurement::

    with record_run("batching", make_slug(max_num_seqs=8), config, hardware=fingerprint()) as run:
        run.throughput = {"output_tokens_per_s": 410.0}

Reading, in a notebook::

    df = load_results("results")
    df[["run", "throughput.output_tokens_per_s", "latency.ttft_s.p50"]]
"""

from infopt.results.files import read_json, write_bytes_atomic, write_json, write_text_atomic
from infopt.results.identity import code_identity, hardware_id, library_versions
from infopt.results.machines import machine_name, merge_results
from infopt.results.metrics import METRICS, Metric, interval_columns, metric_of
from infopt.results.record import SCHEMA_VERSION, RunRecord, record_path
from infopt.results.recorder import RunDraft, describe_failure, finished_record, record_run
from infopt.results.slug import check_slug, make_slug
from infopt.results.table import (
    MixedHardwareWarning,
    find_records,
    flatten_record,
    load_results,
    load_samples,
    read_records,
    read_table,
    records_table,
    require_columns,
    write_table,
)

__all__ = [
    "METRICS",
    "SCHEMA_VERSION",
    "Metric",
    "MixedHardwareWarning",
    "RunDraft",
    "RunRecord",
    "check_slug",
    "code_identity",
    "describe_failure",
    "find_records",
    "finished_record",
    "flatten_record",
    "hardware_id",
    "interval_columns",
    "library_versions",
    "load_results",
    "load_samples",
    "machine_name",
    "make_slug",
    "merge_results",
    "metric_of",
    "read_json",
    "read_records",
    "read_table",
    "record_path",
    "record_run",
    "records_table",
    "require_columns",
    "write_bytes_atomic",
    "write_json",
    "write_table",
    "write_text_atomic",
]
