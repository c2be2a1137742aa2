#!/usr/bin/env bash
# Everything CI runs, in stages whose seconds are printed: packages, build, checks, unit tests, race tests, assets,
# tests on real microVMs. Needs root and the package registries. Never skips: a stage that cannot run fails.
#
# SPACE_CACHE (default ~/.cache/space) keeps what is expensive to make, keyed by a hash of what it is made from (test/assets.sh).
set -euo pipefail
cd "$(dirname "$0")/.."

summary=()
current=
begun=0

stage() {
  local now
  now=$(date +%s)
  if [ -n "$current" ]; then
    summary+=("$(printf '%4d s  %s' "$((now - begun))" "$current")")
  fi
  current=${1:-}
  begun=$now
  if [ -n "$current" ]; then printf '\n== %s\n' "$current"; fi
}
trap 'code=$?; if [ "$code" != 0 ]; then echo "test: stage \"$current\" failed" >&2; fi' EXIT

if [ "$(id -u)" != 0 ]; then
  echo "test: needs root: the tests make namespaces, mounts, control groups and microVMs — run: sudo make test" >&2
  exit 1
fi

stage packages
packages=(busybox-static curl e2fsprogs gcc libc6-dev mmdebstrap musl-tools procps qemu-system-x86 systemd tmux xfsprogs)
missing=()
for p in "${packages[@]}"; do
  dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' || missing+=("$p")
done
if [ "${#missing[@]}" != 0 ]; then
  apt-get update -q
  DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
fi

stage build
make -s build

stage checks
unformatted=$(gofmt -l $(git ls-files '*.go' ':!*.pb.go' ':!*.connect.go'))
if [ -n "$unformatted" ]; then
  printf 'not formatted by gofmt:\n%s\n' "$unformatted" >&2
  exit 1
fi
go vet ./...
go vet -tags realvm ./...
go vet -tags failpoints ./...

stage "unit tests"
go test ./...

stage "mutations"
go test -tags mutation -count=1 -run '^TestMutations$' ./internal/control

stage "race tests"
CGO_ENABLED=1 go test -race -short ./internal/agent/ ./internal/control/ ./internal/gateway/ ./internal/ingress/ ./internal/node/ ./internal/operation/
CGO_ENABLED=1 go test -race -run '^TestChaos$' ./internal/spacetest/

stage assets
assets=$(test/assets.sh)
du -sh "$assets"

stage "tests on real microVMs"
export SPACE_TEST_BIN=$PWD/bin SPACE_TEST_ASSETS=$assets SPACE_TEST_GUEST=$assets/guest
log=$(mktemp)
trap 'code=$?; rm -f "$log"; if [ "$code" != 0 ]; then echo "test: stage \"$current\" failed" >&2; fi' EXIT
mapfile -t files < <(git ls-files '*_test.go' | xargs grep -lE '^//go:build ([a-z]+ \|\| )*realvm')
mapfile -t packages < <(dirname "${files[@]}" | sort -u | sed 's|^|./|')
mapfile -t names < <(grep -hoE '^func Test[A-Za-z0-9_]+' "${files[@]}" | sed 's/^func //' | grep -v '^TestMain$')
failed=
go test -tags realvm -count=1 -timeout 40m -p 1 -v "${packages[@]}" >"$log" 2>&1 || failed=1
grep -E '^(--- |ok|FAIL|panic:|\{)' "$log" || true
if [ -n "$failed" ]; then
  grep -B 60 -E '^(--- FAIL|panic:|FAIL)' "$log" | grep -vE '^(=== |--- PASS)' | tail -n 200 >&2
  exit 1
fi
# A test that did not run has not passed.
for name in "${names[@]}"; do
  grep -q "^--- PASS: $name " "$log" || { echo "test: $name did not run" >&2; exit 1; }
done
if grep -q -- '--- SKIP' "$log"; then
  echo "test: a test skipped itself" >&2
  exit 1
fi

stage "control plane and soak, short forms"
test/bench.sh control -n1 20 -n10 50 -n50 200
test/bench.sh soak

stage
printf '\n== seconds per stage\n'
printf '%s\n' "${summary[@]}"
printf '\n== closing lines of go test\n'
grep -E '^(ok|PASS|FAIL)' "$log"
