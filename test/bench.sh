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
boot | session | soak)
  assets=$(test/assets.sh)
  export CGO_ENABLED=0
  if [ "$name" != soak ]; then go build -o bin/bare ./bench/bare; fi
  go build -o "bin/bench-$name" "./bench/$name"
  "bin/bench-$name" -assets "$assets" "$@"
  ;;
control)
  export CGO_ENABLED=0
  go build -o bin/bench-control ./bench/control
  bin/bench-control "$@"
  ;;
*)
  echo "bench: no benchmark $name; there are: boot, session, control, soak" >&2
  exit 2
  ;;
esac
