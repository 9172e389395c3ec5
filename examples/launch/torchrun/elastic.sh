#!/bin/bash
# Starling under torchrun with nodes that come and go. On each node:
#
#   export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1  # else torch 2.15 cannot take a node in
#   torchrun --no-python --nnodes 1:4 --nproc-per-node 4 --max-restarts 100 \
#     --rdzv-backend c10d --rdzv-endpoint HOST:29400 --rdzv-id 1 \
#     examples/launch/torchrun/elastic.sh RECIPE.toml OUT [OPTION...]
#
# The workers of a node that is lost are gone, and the others go on without them. When a worker dies
# alone, or a node comes, torchrun starts all workers again: they go on from the last checkpoint in
# OUT, which all nodes see, with the average of the saved models. Options of `starling train`
# follow, such as --checkpoint-every 500. Several nodes need STARLING_TOKEN_FILE (docs/launch.md).
set -euo pipefail

recipe=$1 out=$2
if [[ -f $out/summary.json ]]; then
  echo "elastic.sh: the run in $out is done: nothing is left for this node" >&2
  exit 0
fi
resume=()
[[ ! -f $out/checkpoints/latest ]] || resume=(--resume "$out/checkpoints")
exec starling train "$recipe" --out "$out" --checkpoint.workers average "${@:3}" "${resume[@]}"
