package agent

// Chunk sizes: small for the many processes that say a few words, large for those that say much.
const (
	minChunk = 512
	maxChunk = 64 << 10
)

// stream is the kept part of one output stream: the bytes from start to end, in chunks. Bytes once written are never
// changed, so slices of them stay valid after they have been dropped.
type stream struct {
	start, end uint64
	chunks     []chunk
}

type chunk struct {
	offset uint64 // of its first byte
	data   []byte // its capacity never changes
}

func (c chunk) end() uint64 { return c.offset + uint64(len(c.data)) }

func (st *stream) kept() int { return int(st.end - st.start) }

// spare is how many bytes fit into the last chunk.
func (st *stream) spare() int {
	if len(st.chunks) == 0 {
		return 0
	}
	last := st.chunks[len(st.chunks)-1].data
	return cap(last) - len(last)
}

// nextChunk is the size of a new chunk when want bytes are there: about as much as the stream has, within bounds.
func (st *stream) nextChunk(want int) int {
	return min(max(minChunk, want, st.kept()), maxChunk)
}

func (st *stream) grow(size int) {
	st.chunks = append(st.chunks, chunk{offset: st.end, data: make([]byte, 0, size)})
}

// put appends data, which fits into spare.
func (st *stream) put(data []byte) {
	last := &st.chunks[len(st.chunks)-1]
	last.data = append(last.data, data...)
	st.end += uint64(len(data))
}

// drop forgets the oldest n bytes and returns how much capacity became free. The last chunk stays while it can take
// more.
func (st *stream) drop(n uint64) (freed int64) {
	st.start += n
	i := 0
	for i < len(st.chunks) && st.chunks[i].end() <= st.start && (i < len(st.chunks)-1 || st.spare() == 0) {
		freed += int64(cap(st.chunks[i].data))
		st.chunks[i].data = nil
		i++
	}
	st.chunks = st.chunks[i:]
	if len(st.chunks) == 0 {
		st.chunks = nil
	}
	return freed
}

// dropChunk forgets the first chunk wholly.
func (st *stream) dropChunk() (freed int64) {
	freed = st.drop(st.firstChunkEnd() - st.start)
	if freed == 0 { // it was the last one, with space left
		freed = st.dropTail()
	}
	return freed
}

// dropTail releases a last chunk that holds no kept bytes.
func (st *stream) dropTail() (freed int64) {
	if len(st.chunks) != 1 || st.kept() > 0 {
		return 0
	}
	freed = int64(cap(st.chunks[0].data))
	st.chunks = nil
	return freed
}

func (st *stream) firstChunkEnd() uint64 { return st.chunks[0].end() }

// at returns the bytes from pos up to the end of the chunk they are in, at most up to limit.
func (st *stream) at(pos, limit uint64) []byte {
	lo, hi := 0, len(st.chunks) // the last chunk whose offset is <= pos
	for lo+1 < hi {
		if mid := (lo + hi) / 2; st.chunks[mid].offset <= pos {
			lo = mid
		} else {
			hi = mid
		}
	}
	c := st.chunks[lo]
	to := min(c.end(), limit)
	return c.data[pos-c.offset : to-c.offset : to-c.offset]
}
