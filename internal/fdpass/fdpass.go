// Package fdpass is fd.sock: how the gateway gets from node a socket inside a sandbox's namespace, and nothing else.
//
// One request is one SOCK_SEQPACKET connection: the gateway sends a sandbox id, node answers one packet, either
// 'u' or 'c' with exactly one descriptor (an unconnected or, with the fake, a connected socket), or 'e' and an error.
// Node never connects into a guest; the gateway does, so root waits on no guest.
package fdpass

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/sandbox"
)

const (
	kindUnconnected = 'u'
	kindConnected   = 'c'
	kindError       = 'e'

	maxPacket       = 4 << 10
	exchangeTimeout = 5 * time.Second
)

// wireError is a sandbox.Error as it crosses fd.sock.
type wireError struct {
	Code    sandbox.Code `json:"code"`
	Message string       `json:"message"`
	Cause   string       `json:"cause,omitempty"`
	Remedy  string       `json:"remedy,omitempty"`
}

func encodeError(err error) []byte {
	e := sandbox.AsError(err)
	w := wireError{Code: e.Code, Message: e.Message, Cause: e.Cause, Remedy: e.Remedy}
	if w.Cause == "" && e.Err != nil {
		w.Cause = e.Err.Error()
	}
	data, merr := json.Marshal(w)
	if merr != nil || len(data) >= maxPacket {
		data = []byte(`{"code":"internal","message":"the error does not fit a packet"}`)
	}
	return append([]byte{kindError}, data...)
}

func decodeError(data []byte) error {
	var w wireError
	if err := json.Unmarshal(data, &w); err != nil {
		return fmt.Errorf("answer of node: %w", err)
	}
	return &sandbox.Error{Code: w.Code, Message: w.Message, Cause: w.Cause, Remedy: w.Remedy}
}

// receive reads one packet and at most one descriptor.
func receive(c *net.UnixConn) ([]byte, *os.File, error) {
	buf := make([]byte, maxPacket)
	oob := make([]byte, unix.CmsgSpace(4*4))
	n, oobn, flags, _, err := c.ReadMsgUnix(buf, oob)
	if err != nil {
		return nil, nil, err
	}
	files, err := rights(oob[:oobn])
	if err != nil {
		return nil, nil, err
	}
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 || len(files) > 1 {
		for _, f := range files {
			err = errors.Join(err, f.Close())
		}
		return nil, nil, errors.Join(errors.New("malformed packet"), err)
	}
	if len(files) == 0 {
		return buf[:n], nil, nil
	}
	return buf[:n], files[0], nil
}

func rights(oob []byte) ([]*os.File, error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("control message: %w", err)
	}
	var files []*os.File
	for _, m := range msgs {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue // another kind of message
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "socket"))
		}
	}
	return files, nil
}
