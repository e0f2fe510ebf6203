"""Makes the service manual: plain text in, a PDF of standard fonts out. No dependencies.

    python3 make_pdf.py            writes ../aurora-7-service-manual.pdf
    python3 make_pdf.py --check    fails unless the committed file is what this script makes
"""

import pathlib
import sys

HERE = pathlib.Path(__file__).parent
SOURCE = HERE / "aurora-7-service-manual.txt"
TARGET = HERE.parent / "aurora-7-service-manual.pdf"

WIDTH, HEIGHT = 595, 842  # A4 in points
LEFT, RIGHT, TOP, BOTTOM = 72, 523, 770, 60

# Widths of Helvetica in thousandths of the font size, from its published metrics; space to tilde.
WIDTHS = dict(zip(map(chr, range(32, 127)), [
    278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333, 278, 278,
    556, 556, 556, 556, 556, 556, 556, 556, 556, 556, 278, 278, 584, 584, 584, 556,
    1015, 667, 667, 722, 722, 667, 611, 778, 722, 278, 500, 667, 556, 833, 722, 778,
    667, 778, 722, 667, 611, 722, 667, 944, 667, 667, 611, 278, 278, 278, 469, 556,
    333, 556, 556, 500, 556, 556, 278, 556, 556, 222, 222, 500, 222, 833, 556, 556,
    556, 556, 333, 500, 278, 556, 500, 722, 500, 500, 500, 334, 260, 334, 584,
]))
REGULAR, BOLD = "F1", "F2"


def width(text, size):
    return sum(WIDTHS[c] for c in text) * size / 1000


def wrap(text, size, room):
    lines, line = [], ""
    for word in text.split():
        longer = f"{line} {word}".strip()
        if line and width(longer, size) > room:
            lines.append(line)
            line = word
        else:
            line = longer
    return lines + [line]


def escape(text):
    return text.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")


class Page:
    """The drawing commands of one page, written from top to bottom."""

    def __init__(self):
        self.y = TOP
        self.title = None
        self.commands = []

    def draw(self, text, font, size, x, y):
        self.commands.append(f"BT /{font} {size} Tf 1 0 0 1 {x} {y} Tm ({escape(text)}) Tj ET")

    def block(self, text, font, size, leading, before, indent=0):
        self.y -= before
        for line in wrap(text, size, RIGHT - LEFT - indent):
            self.draw(line, font, size, LEFT + indent, round(self.y, 1))
            self.y -= leading
        if self.y < BOTTOM - leading:
            raise SystemExit(f"page '{self.title}' is too long")

    def add(self, line):
        if line.startswith("## "):
            self.block(line[3:], BOLD, 12, 17, 12)
        elif line.startswith("# "):
            self.title = line[2:]
            self.block(self.title, BOLD, 20, 26, 0)
        elif line.startswith("- "):
            self.draw("-", REGULAR, 10.5, LEFT + 4, round(self.y - 3, 1))
            self.block(line[2:], REGULAR, 10.5, 14.5, 3, 16)
        elif line:
            self.block(line, REGULAR, 10.5, 14.5, 5)


def pages():
    for number, text in enumerate(SOURCE.read_text(encoding="ascii").split("=== page\n")[1:], 1):
        page = Page()
        for line in text.splitlines():
            page.add(line)
        page.draw(f"Aurora 7 Service Manual, page {number}", REGULAR, 8, LEFT, 36)
        yield page


def pdf():
    made = list(pages())
    first_page, first_outline = 6, 6 + 2 * len(made)
    numbers = range(len(made))
    kids = " ".join(f"{first_page + 2 * n} 0 R" for n in numbers)
    objects = [
        "<< /Type /Catalog /Pages 2 0 R /Outlines 5 0 R /PageMode /UseOutlines /Lang (en) >>",
        f"<< /Type /Pages /Count {len(made)} /Kids [{kids}] >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica-Bold /Encoding /WinAnsiEncoding >>",
        f"<< /Type /Outlines /Count {len(made)} /First {first_outline} 0 R /Last {first_outline + len(made) - 1} 0 R >>",
    ]
    for n, page in enumerate(made):
        stream = "\n".join(page.commands)
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {WIDTH} {HEIGHT}] /Contents {first_page + 2 * n + 1} 0 R "
            f"/Resources << /Font << /{REGULAR} 3 0 R /{BOLD} 4 0 R >> >> >>"
        )
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
    for n, page in enumerate(made):
        around = f"/Prev {first_outline + n - 1} 0 R " if n > 0 else ""
        around += f"/Next {first_outline + n + 1} 0 R " if n + 1 < len(made) else ""
        destination = f"/Dest [{first_page + 2 * n} 0 R /Fit]"
        objects.append(f"<< /Title ({escape(page.title)}) /Parent 5 0 R {around}{destination} >>")
    objects.append("<< /Title (Aurora 7 Service Manual) /Author (Halden & Rook) /CreationDate (D:20260105090000Z) >>")

    out, offsets = "%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        offsets.append(len(out))
        out += f"{number} 0 obj\n{body}\nendobj\n"
    table = len(out)
    out += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n"
    out += "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    out += f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R /Info {len(objects)} 0 R >>\nstartxref\n{table}\n%%EOF\n"
    return out.encode("ascii")


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        if TARGET.read_bytes() != pdf():
            raise SystemExit(f"{TARGET.name} is not what {pathlib.Path(__file__).name} makes")
    else:
        TARGET.write_bytes(pdf())
