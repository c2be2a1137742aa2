# The two commands of the README are `make demo` and `make test`. Everything else is for people who build SPACE.
SHELL := /bin/bash
GO ?= go
PROTOC_GEN_GO := v1.36.11
