#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A picture of any texts is XML, and its texts are those that were given: judged by Python's parser.

usage: svg_xml_test.py PROGRAM   (svg_sample)
"""

import codecs
import random
import subprocess
import sys
import xml.etree.ElementTree

SVG = "{http://www.w3.org/2000/svg}"
DIRECTIONS = {*range(0x2028, 0x202F), *range(0x2066, 0x206A)}
NOT_XML = {0xFFFE, 0xFFFF}


def shown(text):
    """What a picture shows of some bytes: each byte that is no part of a character, and each control character, is U+FFFD."""
    def usable(code):
        return code in (0x09, 0x0A) or not (code < 0x20 or 0x7F <= code < 0xA0 or code in DIRECTIONS or code in NOT_XML)
    return "".join(character if usable(ord(character)) else "\ufffd" * len(character.encode())
                   for character in text.decode(errors="byte for byte"))


def texts():
    """Every byte, every pair with a few others, what means something in XML, and random ones."""
    yield from (bytes([byte]) for byte in range(1, 256))
    yield from (bytes([byte]) + b"a" for byte in range(1, 256))
    yield from (b"\xc3" + bytes([byte]) for byte in range(1, 256))
    yield from (b"\xef\xbf" + bytes([byte]) for byte in range(1, 256))
    yield from (b"\xe2\x80" + bytes([byte]) for byte in range(1, 256))
    yield from (b"]]>", b"<!--", b"-->", b"&#0;", b"&amp;", b"</text>", b"'\"", b"<![CDATA[", b"\xed\xa0\x80", b"\xf4\x90\x80\x80")
    chance = random.Random(12)
    for _ in range(2000):
        alphabet = chance.choice((range(1, 256), b"<>&\"';!-[]a", "aü€😀\n\t".encode()))
        yield bytes(chance.choice(alphabet) for _ in range(chance.randrange(1, 40)))


def attribute(text):
    """A parser shows the ends of lines and tabs of an attribute as blanks."""
    return text.replace("\n", " ").replace("\t", " ")


def main():
    codecs.register_error("byte for byte", lambda error: ("\ufffd", error.start + 1))
    given = list(texts())
    picture = subprocess.run([sys.argv[1]], input=b"".join(text + b"\0" for text in given), stdout=subprocess.PIPE, check=True)
    root = xml.etree.ElementTree.fromstring(picture.stdout)
    groups = root.findall(SVG + "g")
    assert root.tag == SVG + "svg" and len(groups) == len(given), len(groups)
    for text, group in zip(given, groups):
        wanted = shown(text)
        whole, short = (element.text for element in group.findall(SVG + "text"))
        titles = [group.find(SVG + "title").text, group.find(SVG + "rect").find(SVG + "title").text]
        assert [whole, *titles] == [wanted] * 3, (text, whole, titles)
        assert short == (wanted if len(wanted) <= 5 else wanted[:5] + "…"), (text, short)
        assert group.get("class") == attribute(wanted), (text, group.get("class"))
    print(f"{len(given)} texts are as they were given")


if __name__ == "__main__":
    main()
