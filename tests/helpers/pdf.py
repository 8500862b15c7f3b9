"""A small whole PDF of one empty page."""


def make_pdf() -> bytes:
    objects = [b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Kids[3 0 R]/Count 1>>"]
    objects += [b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 595 842]>>"]
    content, places = b"%PDF-1.4\n", []
    for number, one in enumerate(objects, 1):
        places.append(len(content))
        content += b"%d 0 obj\n%s\nendobj\n" % (number, one)
    table = b"xref\n0 4\n0000000000 65535 f \n" + b"".join(b"%010d 00000 n \n" % place for place in places)
    trailer = b"trailer\n<</Size 4/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n" % len(content)
    return content + table + trailer


PDF = make_pdf()
