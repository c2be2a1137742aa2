package fdpass

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/rpc"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/sandboxnet"
)

const maxExchanges = 64

// Server is node's side of fd.sock.
type Server struct {
	// Open makes a socket to the agent of a sandbox.
	Open func(ctx context.Context, id sandbox.ID) (sandboxnet.AgentSocket, error)
	// AllowUID is the gateway's uid; root is allowed too.
	AllowUID uint32
	Logger   *slog.Logger
}

// Serve answers requests until ctx is done; it closes l and waits for exchanges under way.
func (s *Server) Serve(ctx context.Context, l *net.UnixListener) error {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	defer l.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, maxExchanges)
	for {
		c, err := l.AcceptUnix()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			if retryAccept(ctx, err) {
				continue
			}
			return fmt.Errorf("accept: %w", err)
		}
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			c.Close()
			return nil
		}
		wg.Go(func() {
			defer func() { <-slots }()
			defer c.Close()
			if err := s.exchange(ctx, c); err != nil {
				s.Logger.Warn("fd.sock request failed", "error", err)
			}
		})
	}
}

// retryAccept waits a little after errors that pass (EMFILE and its kind).
func retryAccept(ctx context.Context, err error) bool {
	if !errors.Is(err, unix.EMFILE) && !errors.Is(err, unix.ENFILE) && !errors.Is(err, unix.ECONNABORTED) && !errors.Is(err, unix.ENOMEM) {
		return false
	}
	select {
	case <-ctx.Done():
	case <-time.After(50 * time.Millisecond):
	}
	return true
}

func (s *Server) exchange(ctx context.Context, c *net.UnixConn) error {
	cred, err := rpc.PeerCred(c)
	if err != nil {
		return err
	}
	if cred.Uid != s.AllowUID && cred.Uid != 0 {
		return fmt.Errorf("peer with uid %d is not the gateway", cred.Uid)
	}
	if err := c.SetDeadline(time.Now().Add(exchangeTimeout)); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) }) // who asks nothing is not waited for
	packet, file, err := receive(c)
	stop()
	if err != nil && ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("receive: %w", err)
	}
	if file != nil {
		return errors.Join(errors.New("the request carried a descriptor"), file.Close())
	}
	id, err := sandbox.ParseID(string(packet))
	if err != nil {
		_, err = c.Write(encodeError(err))
		return err
	}
	sock, err := s.Open(ctx, id)
	if err != nil {
		_, err = c.Write(encodeError(err))
		return err
	}
	defer sock.File.Close()
	kind := byte(kindUnconnected)
	if sock.Connected {
		kind = kindConnected
	}
	_, _, err = c.WriteMsgUnix([]byte{kind}, unix.UnixRights(int(sock.File.Fd())), nil)
	return err
}
