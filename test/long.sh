#!/usr/bin/env bash
# What does not fit CI: every fuzz target for minutes, race tests of all packages, a whole Debian with
# systemd as an image, a long pause, the large template from scratch, 30 minutes of sandboxes that live and die. It writes
# what ran, how long and with which result to docs/evidence/long-<commit>.json. Needs root and the registries.
#
# LONG_FUZZ_SECONDS (default 3600) is the time of all fuzz targets together.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "$(id -u)" != 0 ]; then
  echo "test-long: needs root: it makes namespaces and file systems — run: sudo make test-long" >&2
  exit 1
fi
commit=$(git rev-parse --short HEAD)
evidence=docs/evidence/long-$commit.json
began=$(date -u +%Y-%m-%dT%H:%M:%SZ)
stages=
failed=0

# stage NAME COMMAND...: goes on after a failure, so that one run tells all.
stage() {
  local name=$1 start code=0
  shift
  printf '\n== %s\n' "$name"
  start=$(date +%s)
  "$@" || code=$?
  if [ "$code" != 0 ]; then failed=1; fi
  stages+="${stages:+,}{\"name\":\"$name\",\"seconds\":$(($(date +%s) - start)),\"exit_code\":$code}"
}

stage fuzz test/fuzz.sh "${LONG_FUZZ_SECONDS:-3600}"
stage race env CGO_ENABLED=1 go test -race -timeout 30m ./client/... ./cmd/... ./internal/...
assets=$(test/assets.sh)
stage systemd-image env SPACE_TEST_BIN="$PWD/bin" SPACE_TEST_ASSETS="$assets" SPACE_TEST_GUEST="$assets/guest" \
  go test -tags 'long realvm' -count=1 -timeout 30m -run '^TestSystemdImage$' -v ./test/e2e
stage long-pause env SPACE_TEST_BIN="$PWD/bin" SPACE_TEST_ASSETS="$assets" SPACE_TEST_GUEST="$assets/guest" \
  go test -tags 'long realvm' -count=1 -timeout 20m -run '^TestSessionsOverPause$' -v ./test/e2e
stage crash-qemu env SPACE_TEST_BIN="$PWD/bin" SPACE_TEST_ASSETS="$assets" SPACE_TEST_GUEST="$assets/guest" \
  go test -tags 'long realvm' -count=1 -timeout 60m -run '^TestCrashAtEveryStepOnQEMU$' -v ./test/e2e
stage template-base go test -tags long -count=1 -timeout 60m -run '^TestBuildBase$' -v ./internal/template
stage soak test/bench.sh soak -settle 20s -warm 60s -qemu 200 -qemu-round 10 -fake 3000 -fake-round 250 -least 30m
mkdir -p docs/evidence
printf '{"commit":"%s","began":"%s","host":"%s","cpus":%s,"stages":[%s]}\n' "$commit" "$began" "$(uname -sr)" "$(nproc)" "$stages" >"$evidence"
cat "$evidence"
exit "$failed"
