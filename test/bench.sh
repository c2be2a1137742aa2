#!/usr/bin/env bash
# Runs one benchmark: test/bench.sh NAME [flags of bench/NAME]. Needs root and what make build makes. The last line
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
boot | session)
  assets=$(test/assets.sh)
  export CGO_ENABLED=0
  go build -o bin/bare ./bench/bare
  go build -o "bin/bench-$name" "./bench/$name"
  "bin/bench-$name" -assets "$assets" "$@"
  ;;
*)
  echo "bench: no benchmark $name; there are: boot, session" >&2
  exit 2
  ;;
esac
