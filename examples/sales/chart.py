"""Draw the monthly totals as a bar chart. Writes PNG with the standard library alone."""

import struct
import sys
import zlib

from report import monthly_totals, read_sales

WIDTH, HEIGHT, MARGIN = 640, 360, 30
PAPER, AXIS, BAR, TOP = (250, 249, 245), (60, 60, 60), (46, 110, 158), (232, 126, 60)


def png(pixels):
    """Encode rows of RGB tuples as a PNG file."""

    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    raw = b"".join(b"\x00" + bytes(v for p in row for v in p) for row in pixels)
    header = struct.pack(">IIBBBBB", len(pixels[0]), len(pixels), 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(raw, 9)) + chunk(b"IEND", b"")


def draw(totals):
    """Return the rows of pixels of the chart; the best month has its own colour."""
    rows = [[PAPER] * WIDTH for _ in range(HEIGHT)]

    def box(x0, y0, x1, y1, colour):
        for y in range(y0, y1):
            rows[y][x0:x1] = [colour] * (x1 - x0)

    best = max(totals.values())
    step = (WIDTH - 2 * MARGIN) // len(totals)
    for i, value in enumerate(totals.values()):
        height = int((HEIGHT - 2 * MARGIN) * value / best)
        x = MARGIN + i * step
        box(x + 4, HEIGHT - MARGIN - height, x + step - 4, HEIGHT - MARGIN, TOP if value == best else BAR)
    box(MARGIN, HEIGHT - MARGIN, WIDTH - MARGIN, HEIGHT - MARGIN + 2, AXIS)
    return rows


def main():
    totals = monthly_totals(read_sales("data/sales.csv"))
    for month, total in totals.items():
        print(f"{month}  {total:>10}")
    with open(sys.argv[1], "wb") as f:
        f.write(png(draw(totals)))
    print(f"wrote {sys.argv[1]}: {WIDTH}x{HEIGHT}")


if __name__ == "__main__":
    main()
