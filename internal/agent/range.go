package agent

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/space-sandbox/space/internal/sandbox"
)

// byteRange is a part of a file: first to last, both included.
type byteRange struct{ first, last int64 }

// parseRange reads a Range header for a file of size bytes. nil means the whole file: no header, one that is not
// understood (RFC 9110 has it ignored), several parts, or an empty file, of which no part can be named.
func parseRange(header string, size int64) (*byteRange, error) {
	spec, ok := strings.CutPrefix(header, "bytes=")
	first, last, dash := strings.Cut(strings.TrimSpace(spec), "-")
	if !ok || !dash || size == 0 {
		return nil, nil
	}
	if first == "" { // the last so many bytes
		n, err := strconv.ParseUint(last, 10, 63)
		if err != nil {
			return nil, nil
		}
		if n == 0 {
			return nil, outOfRange(size)
		}
		return &byteRange{max(0, size-int64(n)), size - 1}, nil
	}
	begin, err := strconv.ParseUint(first, 10, 63)
	if err != nil {
		return nil, nil
	}
	end := uint64(size - 1)
	if last != "" {
		if end, err = strconv.ParseUint(last, 10, 63); err != nil || end < begin {
			return nil, nil
		}
	}
	if begin >= uint64(size) {
		return nil, outOfRange(size)
	}
	return &byteRange{int64(begin), min(int64(end), size-1)}, nil
}

func outOfRange(size int64) error {
	return &sandbox.Error{Code: sandbox.CodeRange, Message: "the file is shorter than that",
		Cause: fmt.Sprintf("it has %d bytes", size), Remedy: "ask for bytes that are there"}
}
