#!/usr/bin/env bash
# Makes what tests and benchmarks boot (guest and template mini) unless it is there already, and prints where it is.
# It changes with the agent and its builder, the recipe and the day's packages. Needs what make build makes.
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${SPACE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/space}
key=$({ cat bin/space-agent; cat internal/guestos/*.go internal/template/*.go; } | sha256sum | cut -c1-16)
assets=$cache/assets-$key
if [ ! -e "$assets/complete" ]; then
  rm -rf "$assets"
  mkdir -p "$cache"
  bin/space assets build "$assets" --templates mini >&2
  touch "$assets/complete"
fi
echo "$assets"
