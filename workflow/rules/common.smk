# Configuration and helpers shared by all rules. Whatever is more than a lookup is in the package
# (infopt.experiments), where it has tests.
from pathlib import Path

from infopt import __version__ as INFOPT_VERSION
from infopt.experiments.config import complete_config, load_schema, read_config
from infopt.experiments.judging import measured
from infopt.experiments.own_head import wants_head
from infopt.experiments.source import source_identity
from infopt.experiments.select_spec import select_spec
from infopt.experiments.spec import model_name, slice_names, slice_spec

# A configuration given with --configfile stands for itself: Snakemake would merge it into the
# default file key by key, and lists of options would mix. Keys it leaves out get the defaults of the
# schema, which are those of config/config.yaml (a test compares them).
if not workflow.configfiles and Path("config/config.yaml").exists():

    configfile: "config/config.yaml"


# Snakemake has read them already; of a key that is there twice it took the last without a word.
for path in workflow.configfiles:
    read_config(path)

SCHEMA = load_schema(Path(workflow.basedir, "workflow/schemas/config.schema.yaml"))
CONFIG = complete_config(config, SCHEMA)
# Captions of the report quote the settings of the run, defaults included.
config.update(CONFIG)

RESULTS = CONFIG["results_dir"]
MODEL = model_name(CONFIG["model"], RESULTS)
IS_CUDA = CONFIG["engine"].get("device") == "cuda"
CHAIN = ("baseline", "batching", "quantization", "kv_cache", "speculative")
"""Stages whose winners the next ones start from."""

STAGES = (*CHAIN, "moe", "power")
STARTS_FROM = {stage: CHAIN[:i] for i, stage in enumerate(CHAIN)}
STARTS_FROM |= dict.fromkeys(("moe", "power"), CHAIN)
STARTS_FROM |= dict.fromkeys(("serving", "select"), (*CHAIN, "power"))
ENV = "../../envs/cuda.yaml" if IS_CUDA else "../../envs/cpu.yaml"

# Timing jobs never overlap, whatever the command line says: a resource that no option limits is
# unlimited, so its limit is set here. (Devices are locked by the jobs as well, which also keeps two
# runs of the pipeline apart.)
workflow.register_resource("measure", CONFIG["measure_slots"])


wildcard_constraints:
    slice="[a-z0-9][a-z0-9_-]*",
    stage="[a-z][a-z0-9_]*",
    name="[0-9]{2}_[a-z0-9_]+",


def results_dir(wildcards):
    """Return the folder of all results."""
    return RESULTS


def measured_spec(stage, name):
    """Return everything that decides the numbers of a slice, as text that is the same each time."""
    return measured(_spec(stage, name)).to_json()


def stage_specs(stage):
    """Return the specifications of all slices of a stage, with what decides between candidates."""
    return [_spec(stage, name).to_json() for name in slice_names(CONFIG, stage)]


def _spec(stage, name):
    if stage == "select":
        spec = select_spec(CONFIG, name)
    else:
        spec = slice_spec(CONFIG, stage, name)
    # A slice with a model of its own keeps it.
    own = spec.model != CONFIG["model"]
    return spec if own else spec.with_model(MODEL)


def stage_floor(stage):
    """Return the quality floor where a slice of the stage measures quality, else None."""
    names = slice_names(CONFIG, stage)
    judged = any(_spec(stage, name).measures_quality for name in names)
    return CONFIG["quality_floor"] if judged else None


def winners_before(stage):
    """Return the files with the winners that the measurements of a stage start from."""
    return expand(f"{RESULTS}/winners/{{stage}}.yaml", stage=STARTS_FROM[stage])


def manifests(stage):
    """Return the manifests of all slices of a stage."""
    return expand(
        f"{RESULTS}/slices/{stage}/{{slice}}.json", slice=slice_names(CONFIG, stage)
    )


def measure_threads():
    """Return the threads of a measuring job: all cores, divided by the jobs that run at once.

    Reports and cluster runs give no number of cores; --set-threads sets one for the latter.
    """
    cores = workflow.resource_settings.cores or 1
    return max(cores // CONFIG["measure_slots"], 1)


def model_files(wildcards):
    """Return the files of a model that lies in a folder, so that a changed model is seen."""
    path = Path(CONFIG["model"])
    if path.is_dir():
        return sorted(
            str(p) for p in path.iterdir() if p.suffix in (".json", ".safetensors")
        )
    return [str(path)] if path.is_file() else []


def slice_setting(wildcards, key):
    """Return a setting of the slice in the wildcards, or all of them as text for captions."""
    spec = slice_spec(CONFIG, wildcards.stage, wildcards.slice)
    return getattr(spec, key) if key else spec.describe()


def figures():
    """Return the figures of all slices, of the load sweep and of the finalists."""
    names = [f"{stage}.{s}" for stage in STAGES for s in slice_names(CONFIG, stage)]
    names += ["serving.load", "select.finalists"]
    return expand(f"{RESULTS}/figures/{{name}}.png", name=names)


def needs_head(name):
    """Return whether a candidate of a slice of `speculative` asks for the head that is trained in the run."""
    return wants_head(slice_spec(CONFIG, "speculative", name))
