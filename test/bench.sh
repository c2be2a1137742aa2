#!/usr/bin/env bash
# Runs one benchmark: test/bench.sh boot [flags of bench/boot]. Needs root and what make build makes. The last line
# that it prints is one JSON object.
set -euo pipefail
cd "$(dirname "$0")/.."

name=${1:?usage: test/bench.sh NAME}
shift
if [ "$(id -u)" != 0 ]; then
  echo "bench: needs root: it makes namespaces, mounts and microVMs — run: sudo make bench-$name" >&2
  exit 1
fi
case $name in
boot)
  assets=$(test/assets.sh)
  export CGO_ENABLED=0
  go build -o bin/bare ./bench/bare
  go build -o bin/bench-boot ./bench/boot
  bin/bench-boot -assets "$assets" "$@"
  ;;
*)
  echo "bench: no benchmark $name; there is: boot" >&2
  exit 2
  ;;
esac
