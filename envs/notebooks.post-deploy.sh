#!/usr/bin/env bash
# Runs in the working directory, after conda has made the environment. A relative `pip: -e ..` in
# the YAML file would point into .snakemake/, where the file is copied to.
set -euo pipefail
pip install --constraint envs/constraints-cpu.txt --editable .
