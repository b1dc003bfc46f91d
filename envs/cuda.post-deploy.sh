#!/usr/bin/env bash
# torch first: flash-attn is built against the torch that is installed.
set -euo pipefail
pip install "torch>=2.11"
pip install --no-build-isolation --editable ".[cuda,energy]"
