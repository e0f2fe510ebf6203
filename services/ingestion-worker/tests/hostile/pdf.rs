//! PDFs that are broken or mean harm, made here byte by byte.

use std::io::{Read, Write};

/// A PDF of the given objects, numbered from 1; the first is the catalog.
pub(crate) fn file(objects: &[Vec<u8>]) -> Vec<u8> {
    let mut out = b"%PDF-1.7\n%\xE2\xE3\xCF\xD3\n".to_vec();
    let mut table = format!("xref\n0 {}\n0000000000 65535 f \n", objects.len() + 1);
    for (index, object) in objects.iter().enumerate() {
        table.push_str(&format!("{:010} 00000 n \n", out.len()));
        out.extend_from_slice(format!("{} 0 obj\n", index + 1).as_bytes());
        out.extend_from_slice(object);
        out.extend_from_slice(b"\nendobj\n");
    }
    let (xref, size) = (out.len(), objects.len() + 1);
    let end = format!("{table}trailer\n<</Size {size}/Root 1 0 R>>\nstartxref\n{xref}\n%%EOF\n");
    out.extend_from_slice(end.as_bytes());
    out
}

pub(crate) fn stream(dictionary: &str, content: &[u8]) -> Vec<u8> {
    let mut out = format!("<<{dictionary}/Length {}>>\nstream\n", content.len()).into_bytes();
    out.extend_from_slice(content);
    out.extend_from_slice(b"\nendstream");
    out
}

const FONT: &str = "<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>";
/// The text of the first page of every file here that has one.
pub(crate) const HELLO: &str = "hello first page";

/// A page that says [`HELLO`], then one with `second`. Object 3 is the font F; `more` begin at object 8.
pub(crate) fn two_pages(second: &[u8], second_dictionary: &str, resources: &str, more: &[Vec<u8>]) -> Vec<u8> {
    let page = |content: u32| {
        format!(
            "<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]/Contents {content} 0 R\
             /Resources<</Font<</F 3 0 R>>{resources}>>>>"
        )
    };
    let hello = format!("BT /F 12 Tf 50 700 Td ({HELLO}) Tj ET");
    let mut objects = vec![
        b"<</Type/Catalog/Pages 2 0 R>>".to_vec(),
        b"<</Type/Pages/Count 2/Kids[4 0 R 6 0 R]>>".to_vec(),
        FONT.as_bytes().to_vec(),
        page(5).into_bytes(),
        stream("", hello.as_bytes()),
        page(7).into_bytes(),
        stream(second_dictionary, second),
    ];
    objects.extend_from_slice(more);
    file(&objects)
}

pub(crate) fn plain() -> Vec<u8> {
    two_pages(b"BT /F 12 Tf 50 700 Td (the second page) Tj ET", "", "", &[])
}

/// Everything after the last object is gone.
pub(crate) fn truncated() -> Vec<u8> {
    let bytes = plain();
    let end = find(&bytes, b"xref");
    bytes[..end].to_vec()
}

/// Every offset in the table is wrong.
pub(crate) fn wrong_offsets() -> Vec<u8> {
    let text = plain();
    let at = find(&text, b"xref");
    let moved = String::from_utf8_lossy(&text[at..]).replace("00000001", "00000009");
    [&text[..at], moved.as_bytes()].concat()
}

/// The table is said to be where there is none.
pub(crate) fn wrong_start() -> Vec<u8> {
    let bytes = plain();
    let at = find(&bytes, b"startxref");
    [&bytes[..at], b"startxref\n7\n%%EOF\n"].concat()
}

/// Tables that name each other as the one before.
pub(crate) fn endless_tables() -> Vec<u8> {
    let bytes = plain();
    let xref = find(&bytes, b"xref");
    let text = String::from_utf8_lossy(&bytes[xref..]).replace("/Root 1 0 R", &format!("/Root 1 0 R/Prev {xref}"));
    [&bytes[..xref], text.as_bytes()].concat()
}

/// A folder of pages that holds itself.
pub(crate) fn page_loop() -> Vec<u8> {
    replace(&plain(), b"/Kids[4 0 R 6 0 R]", b"/Kids[4 0 R 2 0 R]")
}

/// A stream whose length is that of itself.
pub(crate) fn length_of_itself() -> Vec<u8> {
    let mut objects = two_objects();
    objects[6] = b"<</Length 7 0 R>>\nstream\nBT ET\nendstream".to_vec();
    file(&objects)
}

/// Claims two thousand million pages.
pub(crate) fn many_pages_claimed() -> Vec<u8> {
    replace(&plain(), b"/Count 2", b"/Count 2147483647")
}

/// Has twenty thousand pages.
pub(crate) fn many_pages() -> Vec<u8> {
    let kids: Vec<String> = (0..20_000).map(|i| format!("{} 0 R", 4 + i)).collect();
    let mut objects = vec![
        b"<</Type/Catalog/Pages 2 0 R>>".to_vec(),
        format!("<</Type/Pages/Count 20000/Kids[{}]>>", kids.join(" ")).into_bytes(),
        FONT.as_bytes().to_vec(),
    ];
    objects.extend((0..20_000).map(|_| b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]>>".to_vec()));
    file(&objects)
}

/// A page at the end of a chain of twenty thousand folders.
pub(crate) fn deep_pages() -> Vec<u8> {
    let depth = 20_000;
    let mut objects = vec![b"<</Type/Catalog/Pages 2 0 R>>".to_vec()];
    objects.extend((0..depth).map(|i| format!("<</Type/Pages/Count 1/Kids[{} 0 R]>>", i + 3).into_bytes()));
    objects.push(b"<</Type/Page/MediaBox[0 0 9 9]>>".to_vec());
    file(&objects)
}

/// A hundred thousand arrays in one another.
pub(crate) fn deep_arrays() -> Vec<u8> {
    let mut objects = two_objects();
    objects.push([vec![b'['; 100_000], vec![b']'; 100_000]].concat());
    file(&objects)
}

/// An object that is a reference to itself, as a page's content.
pub(crate) fn reference_loop() -> Vec<u8> {
    let mut objects = two_objects();
    objects[6] = b"8 0 R".to_vec();
    objects.push(b"7 0 R".to_vec());
    file(&objects)
}

/// Sixty-four million operators in a few kilobytes.
pub(crate) fn bomb() -> Vec<u8> {
    two_pages(&zlib_of(b"q ", 128 << 20), "/Filter/FlateDecode", "", &[])
}

/// A bomb in a bomb.
pub(crate) fn double_bomb() -> Vec<u8> {
    let inner = zlib_of(b"  ", 512 << 20);
    two_pages(&zlib(&inner), "/Filter[/FlateDecode/FlateDecode]", "", &[])
}

/// Forms that draw the next one ten times: the page takes 10^12 steps.
pub(crate) fn nested_forms() -> Vec<u8> {
    let forms: Vec<Vec<u8>> = (0..12)
        .map(|i| {
            let next = format!("/Type/XObject/Subtype/Form/BBox[0 0 1 1]/Resources<</XObject<</N {} 0 R>>>>", 9 + i);
            let last = "/Type/XObject/Subtype/Form/BBox[0 0 1 1]";
            if i < 11 { stream(&next, &b"/N Do ".repeat(10)) } else { stream(last, b"q Q") }
        })
        .collect();
    two_pages(b"/N Do", "", "/XObject<</N 8 0 R>>", &forms)
}

/// A form that draws itself.
pub(crate) fn form_loop() -> Vec<u8> {
    let form = stream("/Type/XObject/Subtype/Form/BBox[0 0 1 1]/Resources<</XObject<</N 8 0 R>>>>", b"/N Do");
    two_pages(b"/N Do", "", "/XObject<</N 8 0 R>>", &[form])
}

/// A character map with one range of four thousand million codes.
pub(crate) fn endless_map() -> Vec<u8> {
    let map = b"/CIDInit /ProcSet findresource begin begincmap 1 begincodespacerange <00000000> <FFFFFFFF> \
        endcodespacerange 1 beginbfrange <00000000> <FFFFFFFE> <0041> endbfrange endcmap end";
    let font = b"<</Type/Font/Subtype/Type0/BaseFont/X/Encoding/Identity-H/ToUnicode 9 0 R/DescendantFonts[10 0 R]>>";
    let descendant = b"<</Type/Font/Subtype/CIDFontType2/BaseFont/X/CIDSystemInfo<</Registry(Adobe)/Ordering(Identity)\
        /Supplement 0>>/DW 500>>";
    let content = b"BT /G 12 Tf 50 700 Td <00410042> Tj ET";
    let mut objects = two_objects();
    objects[5] =
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]/Contents 7 0 R/Resources<</Font<</G 8 0 R>>>>>>".to_vec();
    objects[6] = stream("", content);
    objects.extend([font.to_vec(), stream("", map), descendant.to_vec()]);
    file(&objects)
}

/// Glyphs as large as a galaxy.
pub(crate) fn degenerate_matrix() -> Vec<u8> {
    two_pages(b"1e30 0 0 1e30 1e30 1e30 cm BT /F 1e30 Tf 1e38 1e38 Td (x) Tj ET", "", "", &[])
}

/// A million strings on one spot.
pub(crate) fn many_strings() -> Vec<u8> {
    let content = [b"BT /F 12 Tf ".to_vec(), b"(a)Tj ".repeat(1_000_000), b"ET".to_vec()].concat();
    two_pages(&zlib(&content), "/Filter/FlateDecode", "", &[])
}

/// Nothing behind the header makes sense.
pub(crate) fn noise() -> Vec<u8> {
    let mut bytes = b"%PDF-1.4\n".to_vec();
    bytes.extend(random(7).take(100_000));
    bytes
}

/// A file with some of its bytes changed.
pub(crate) fn damaged(good: &[u8], seed: u32) -> Vec<u8> {
    let mut bytes = good.to_vec();
    let mut dice = random(seed);
    for _ in 0..40 {
        let at = (0..4).fold(0usize, |at, _| at << 8 | usize::from(dice.next().unwrap_or(0))) % bytes.len();
        bytes[at] = dice.next().unwrap_or(0);
    }
    bytes
}

/// The same bytes for the same seed (xorshift).
pub(crate) fn random(seed: u32) -> impl Iterator<Item = u8> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    std::iter::from_fn(move || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        Some((state >> 11) as u8)
    })
}

fn two_objects() -> Vec<Vec<u8>> {
    let text = plain();
    let text = &text[find(&text, b"1 0 obj")..find(&text, b"xref")];
    let parts = String::from_utf8_lossy(text).into_owned();
    parts
        .split("\nendobj\n")
        .filter_map(|object| object.split_once(" 0 obj\n"))
        .map(|(_, body)| body.as_bytes().to_vec())
        .collect()
}

fn find(bytes: &[u8], part: &[u8]) -> usize {
    bytes.windows(part.len()).position(|w| w == part).unwrap()
}

fn replace(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let at = find(bytes, from);
    [&bytes[..at], to, &bytes[at + from.len()..]].concat()
}

/// A zlib stream (RFC 1950) of a pattern over and over.
fn zlib_of(pattern: &[u8; 2], length: usize) -> Vec<u8> {
    let block = pattern.repeat(1 << 19);
    wrap(length / block.len(), &block)
}

fn zlib(bytes: &[u8]) -> Vec<u8> {
    wrap(1, bytes)
}

/// Takes the deflated data out of a ZIP entry, so that no further library is needed.
fn wrap(times: usize, block: &[u8]) -> Vec<u8> {
    let mut out = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    out.start_file("x", zip::write::SimpleFileOptions::default()).unwrap();
    let (mut a, mut b) = (1u64, 0u64);
    for _ in 0..times {
        out.write_all(block).unwrap();
        for part in block.chunks(5552) {
            for byte in part {
                a += u64::from(*byte);
                b += a;
            }
            (a, b) = (a % 65_521, b % 65_521);
        }
    }
    let mut archive = zip::ZipArchive::new(out.finish().unwrap()).unwrap();
    let mut bytes = vec![0x78, 0x9c];
    archive.by_index_raw(0).unwrap().read_to_end(&mut bytes).unwrap();
    bytes.extend_from_slice(&u32::try_from(b << 16 | a).unwrap().to_be_bytes());
    bytes
}
