# The two commands of the README are `make demo` and `make test`. Everything else is for people who build SPACE.
SHELL := /bin/bash
GO ?= go
GO_MIN := 1.26

export CGO_ENABLED := 0
LDFLAGS := -s -w
AGENT := internal/guestos/agentbin/space-agent

.PHONY: help demo test test-long build check-go unit lint fuzz generate man redteam bench bench-boot bench-session bench-control bench-soak clean

help:
	@echo "make demo    install what is missing, build, set up, and watch real work in a real microVM (root)"
	@echo "make test    everything CI runs (root)"
	@echo "make build   bin/space and bin/space-agent"
	@echo "make unit    unit tests only; no microVM"
	@echo "make lint    golangci-lint;  make generate: protocol code, OpenAPI, error table"
	@echo "make bench   all benchmarks (root):  bench-boot: create-to-ready against the bare VMM;"
	@echo "             bench-session: commands and files through the API against the bare agent;"
	@echo "             bench-control: creates and deletes a second of the control plane alone, and where the time goes;"
	@echo "             bench-soak: many lives, and whether memory, goroutines, descriptors and kernel objects stay flat"
	@echo "make redteam       a hostile guest tries every way out; the last line says what got through (root)"
	@echo "make test-long     what does not fit CI: every fuzz target for minutes, the template base (root)"
	@echo "make fuzz    every fuzz target for its share of 90 s;  make man: manual pages in bin/man"

demo: build
	@examples/demo.sh

# Signals that whoever calls us ignores (nohup, a background job) would be ignored by what the tests start, too.
test: check-go
	@env --default-signal test/run.sh

# A machine without Go, or with an old one, is told what to install before anything else happens.
check-go:
	@command -v $(GO) >/dev/null || { echo "make: Go is not installed — install Go $(GO_MIN) or newer from https://go.dev/dl/ and put its bin directory in PATH" >&2; exit 1; }
	@v=$$($(GO) env GOVERSION | sed 's/^go//'); \
	  [ "$$(printf '%s\n' "$(GO_MIN)" "$$v" | sort -V | head -n 1)" = "$(GO_MIN)" ] || \
	  { echo "make: Go $$v is too old — install Go $(GO_MIN) or newer from https://go.dev/dl/" >&2; exit 1; }

build: check-go
	@mkdir -p bin
	$(GO) build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)' -o bin/space-agent ./cmd/space-agent
	@cmp -s bin/space-agent $(AGENT) || cp bin/space-agent $(AGENT)
	$(GO) build -trimpath -buildvcs=false -tags embedagent -ldflags '$(LDFLAGS)' -o bin/space ./cmd/space

unit: check-go
	$(GO) test ./...

GOLANGCI_LINT := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
lint: check-go
	$(GO) run $(GOLANGCI_LINT) run ./...

PROTOC_GEN_GO := google.golang.org/protobuf/cmd/protoc-gen-go
PROTOC_GEN_CONNECT := connectrpc.com/connect/cmd/protoc-gen-connect-go
generate: check-go
	@command -v protoc >/dev/null || { echo "make: protoc is missing — apt-get install protobuf-compiler libprotobuf-dev" >&2; exit 1; }
	GOBIN=$(CURDIR)/bin $(GO) install $(PROTOC_GEN_GO) $(PROTOC_GEN_CONNECT)
	PATH=$(CURDIR)/bin:$$PATH protoc --go_out=. --go_opt=module=github.com/space-sandbox/space \
	  --connect-go_out=. --connect-go_opt=module=github.com/space-sandbox/space api/proto/*/v1/*.proto
	$(GO) test ./internal/httpapi -run Generated -update

# Every fuzz target; SECONDS= is for all of them together.
FUZZ_SECONDS := 90
fuzz: check-go
	@test/fuzz.sh $(FUZZ_SECONDS)

man: build
	@bin/space man bin/man
	@echo "bin/man: $$(ls bin/man | wc -l) pages; man -l bin/man/space.1"

redteam: build
	@test/redteam.sh

test-long: build
	@test/long.sh

bench: bench-boot bench-session bench-control bench-soak

bench-boot: build
	@test/bench.sh boot

bench-session: build
	@test/bench.sh session

bench-control: build
	@test/bench.sh control

bench-soak: build
	@test/bench.sh soak

clean:
	rm -rf bin $(AGENT)
