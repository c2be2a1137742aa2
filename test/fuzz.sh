#!/usr/bin/env bash
# Runs every fuzz target of the repository for its share of a budget in seconds: test/fuzz.sh [SECONDS] [PATTERN]. The
# time of compiling counts; each target gets a second at least.
# The targets are found, not listed: whoever adds one gets it run. An input that fails is left in the package's
# testdata/fuzz, and is to be committed with the repair.
set -euo pipefail
cd "$(dirname "$0")/.."

budget=${1:-90}
pattern=${2:-.}
mapfile -t targets < <(grep -rnoE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' cmd client internal |
  sed -E 's#^(.*)/[^/]+_test\.go:[0-9]+:func (Fuzz.*)$#\1 \2#' | grep -E "$pattern" | sort)
if [ "${#targets[@]}" = 0 ]; then
  echo "fuzz: no targets found" >&2
  exit 1
fi
# cut_off OUTPUT: go test ran out of its fuzzing time in the middle of an input and counts that as a failure of the
# target. A real failure names the input it has written, or panics.
cut_off() {
  grep -q '^    context deadline exceeded$' <<<"$1" && ! grep -qE 'Failing input written|panic|DATA RACE|_test\.go:' <<<"$1"
}

left=${#targets[@]}
echo "$left targets"
for target in "${targets[@]}"; do
  read -r dir name <<<"$target"
  each=$(((budget - SECONDS) / left))
  if [ "$each" -lt 1 ]; then each=1; fi
  left=$((left - 1))
  printf '%-26s %-20s %3d s  ' "$dir" "$name" "$each"
  if ! out=$(go test "./$dir" -run '^$' -fuzz "^$name\$" -fuzztime "${each}s" -fuzzminimizetime 1x 2>&1) && ! cut_off "$out"; then
    printf 'FAILED\n%s\n' "$out" >&2
    exit 1
  fi
  grep -oE 'execs: [0-9]+' <<<"$out" | tail -n 1 || echo 'no inputs tried'
done
