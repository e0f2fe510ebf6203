"""Makes the bar handbook: plain text in, a Word document with real headings and a real table out. No dependencies.

    python3 make_docx.py            writes ../bar-handbook.docx
    python3 make_docx.py --check    fails unless the committed file holds what this script makes
"""

import io
import pathlib
import sys
import zipfile
from xml.sax.saxutils import escape

HERE = pathlib.Path(__file__).parent
SOURCE = HERE / "bar-handbook.txt"
TARGET = HERE.parent / "bar-handbook.docx"

WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
HEAD = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
STYLES = [("### ", "Heading2"), ("## ", "Heading1"), ("# ", "Title")]


def paragraph(text, style=None, bold=False):
    properties = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
    look = "<w:rPr><w:b/></w:rPr>" if bold else ""
    return f'<w:p>{properties}<w:r>{look}<w:t xml:space="preserve">{escape(text)}</w:t></w:r></w:p>'


def table(rows):
    columns = len(rows[0])
    borders = "".join(
        f'<w:{side} w:val="single" w:sz="4" w:color="999999"/>'
        for side in ["top", "left", "bottom", "right", "insideH", "insideV"]
    )
    out = f'<w:tbl><w:tblPr><w:tblW w:w="0" w:type="auto"/><w:tblBorders>{borders}</w:tblBorders></w:tblPr><w:tblGrid>'
    out += '<w:gridCol w:w="2300"/>' * columns + "</w:tblGrid>"
    for n, row in enumerate(rows):
        cells = "".join(
            f'<w:tc><w:tcPr><w:tcW w:w="2300" w:type="dxa"/></w:tcPr>{paragraph(cell, bold=n == 0)}</w:tc>' for cell in row
        )
        out += f"<w:tr>{cells}</w:tr>"
    return out + "</w:tbl>"


def body():
    out, rows = [], []
    for line in SOURCE.read_text(encoding="utf-8").splitlines() + [""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
            continue
        if rows:
            out.append(table(rows))
            rows = []
        for mark, style in STYLES:
            if line.startswith(mark):
                out.append(paragraph(line[len(mark):], style))
                break
        else:
            if line:
                out.append(paragraph(line))
    return "".join(out)


def style(name, label, size, level=None):
    outline = f'<w:outlineLvl w:val="{level}"/>' if level is not None else ""
    return (
        f'<w:style w:type="paragraph" w:styleId="{name}"><w:name w:val="{label}"/><w:basedOn w:val="Normal"/>'
        f'<w:pPr><w:keepNext/><w:spacing w:before="240" w:after="80"/>{outline}</w:pPr>'
        f'<w:rPr><w:b/><w:sz w:val="{size}"/></w:rPr></w:style>'
    )


def members():
    main = "application/vnd.openxmlformats-officedocument.wordprocessingml"
    return {
        "[Content_Types].xml": HEAD
        + f'<Types xmlns="{PACKAGE}/content-types">'
        + f'<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        + f'<Override PartName="/word/document.xml" ContentType="{main}.document.main+xml"/>'
        + f'<Override PartName="/word/styles.xml" ContentType="{main}.styles+xml"/>'
        + '<Override PartName="/docProps/core.xml" '
        + 'ContentType="application/vnd.openxmlformats-package.core-properties+xml"/></Types>',
        "_rels/.rels": HEAD
        + f'<Relationships xmlns="{PACKAGE}/relationships">'
        + f'<Relationship Id="rId1" Type="{OFFICE}/officeDocument" Target="word/document.xml"/>'
        + f'<Relationship Id="rId2" Type="{PACKAGE}/relationships/metadata/core-properties" '
        + 'Target="docProps/core.xml"/></Relationships>',
        "word/_rels/document.xml.rels": HEAD
        + f'<Relationships xmlns="{PACKAGE}/relationships">'
        + f'<Relationship Id="rId1" Type="{OFFICE}/styles" Target="styles.xml"/></Relationships>',
        "word/document.xml": HEAD
        + f'<w:document xmlns:w="{WORD}"><w:body>{body()}<w:sectPr>'
        + '<w:pgSz w:w="11906" w:h="16838"/><w:pgMar w:top="1440" w:right="1440" w:bottom="1440" w:left="1440" '
        + 'w:header="708" w:footer="708" w:gutter="0"/></w:sectPr></w:body></w:document>',
        "word/styles.xml": HEAD
        + f'<w:styles xmlns:w="{WORD}">'
        + '<w:style w:type="paragraph" w:default="1" w:styleId="Normal"><w:name w:val="Normal"/>'
        + '<w:pPr><w:spacing w:after="120"/></w:pPr><w:rPr><w:sz w:val="22"/></w:rPr></w:style>'
        + style("Title", "Title", 40)
        + style("Heading1", "heading 1", 30, 0)
        + style("Heading2", "heading 2", 25, 1)
        + "</w:styles>",
        "docProps/core.xml": HEAD
        + f'<cp:coreProperties xmlns:cp="{PACKAGE}/metadata/core-properties" '
        + 'xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>The Lantern Street Handbook</dc:title>'
        + "<dc:creator>Lantern Street</dc:creator></cp:coreProperties>",
    }


def docx():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members().items():
            # A fixed time keeps the file the same from run to run.
            info = zipfile.ZipInfo(name, (2026, 1, 5, 9, 0, 0))
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, text.encode("utf-8"))
    return out.getvalue()


def committed():
    # What is inside is compared: compressors differ between versions of Python.
    with zipfile.ZipFile(TARGET) as archive:
        return {name: archive.read(name).decode("utf-8") for name in archive.namelist()}


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        if committed() != members():
            raise SystemExit(f"{TARGET.name} does not hold what {pathlib.Path(__file__).name} makes")
    else:
        TARGET.write_bytes(docx())
