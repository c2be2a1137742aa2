package ociimage

import (
	"archive/tar"
	"io"
	"slices"
)

// Owners are the ids that own files of an image, sorted; root is always among them.
type Owners struct {
	UIDs, GIDs []uint32
}

// scan reads all layers without writing anything.
func (a *archive) scan(img image) (Owners, error) {
	b := newBudget(a.limits)
	uids, gids := map[uint32]bool{0: true}, map[uint32]bool{0: true}
	for _, l := range img.layers {
		err := a.eachEntry(l, b, func(h *tar.Header, content io.Reader) error {
			uids[uint32(h.Uid)], gids[uint32(h.Gid)] = true, true
			if len(uids) > b.Owners || len(gids) > b.Owners {
				return refuse("its files belong to more than %d users or groups", b.Owners)
			}
			if h.Typeflag != tar.TypeReg {
				return nil
			}
			return copyContent(io.Discard, content, h.Size, b)
		})
		if err != nil {
			return Owners{}, err
		}
	}
	return Owners{UIDs: sorted(uids), GIDs: sorted(gids)}, nil
}

func sorted(set map[uint32]bool) []uint32 {
	out := make([]uint32, 0, len(set))
	for id := range set {
		out = append(out, id)
	}
	slices.Sort(out)
	return out
}
