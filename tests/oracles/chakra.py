"""Chakra's messages as protobuf's own library makes them, from the published list of fields: an independent reader."""

from __future__ import annotations

from functools import cache
from typing import Any

SCALARS = (
    "double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32",
    "sfixed64", "bool", "string", "bytes",
)  # fmt: skip
PACKAGE = "oracle_chakra"


@cache
def messages() -> dict[str, Any]:
    """The message classes: GlobalMetadata, Node, AttributeProto."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="oracle_chakra.proto", package=PACKAGE, syntax="proto3")

    def add(message: Any, name: str, number: int, kind: str, repeated: bool = False, oneof: bool = False) -> None:
        found = message.field.add(name=name, number=number)
        found.label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
        if kind[0].isupper():
            found.type, found.type_name = kinds.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
        else:
            found.type = getattr(kinds, f"TYPE_{kind.upper()}")
        if oneof:
            found.oneof_index = 0

    attribute = file.message_type.add(name="AttributeProto")
    attribute.oneof_decl.add(name="value")
    add(attribute, "name", 1, "string")
    add(attribute, "doc_string", 2, "string")
    for place, kind in enumerate(SCALARS):
        listed = file.message_type.add(name=f"{kind.capitalize()}List")
        add(listed, "values", 1, kind, repeated=True)
        add(attribute, f"{kind}_val", 3 + 2 * place, kind, oneof=True)
        add(attribute, f"{kind}_list", 4 + 2 * place, f"{kind.capitalize()}List", oneof=True)
    header = file.message_type.add(name="GlobalMetadata")
    add(header, "version", 1, "string")
    add(header, "attr", 2, "AttributeProto", repeated=True)
    tensors = file.message_type.add(name="IOInfo")
    for number, name in enumerate(("values", "shapes", "types"), 1):
        add(tensors, name, number, "string")
    node = file.message_type.add(name="Node")
    add(node, "id", 1, "uint64")
    add(node, "name", 2, "string")
    add(node, "type", 3, "int32")  # an open enum is an int32 on the wire
    add(node, "ctrl_deps", 4, "uint64", repeated=True)
    add(node, "data_deps", 5, "uint64", repeated=True)
    add(node, "start_time_micros", 6, "uint64")
    add(node, "duration_micros", 7, "uint64")
    add(node, "inputs", 8, "IOInfo")
    add(node, "outputs", 9, "IOInfo")
    add(node, "attr", 10, "AttributeProto", repeated=True)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = ("GlobalMetadata", "Node", "AttributeProto")
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in names}


def varint(value: int) -> bytes:
    """A length as the stream writes it."""
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def write(header: Any, nodes: list[Any]) -> bytes:
    """The stream of an `.et` file."""
    parts = [message.SerializeToString() for message in (header, *nodes)]
    return b"".join(varint(len(part)) + part for part in parts)


def read(content: bytes) -> tuple[Any, list[Any]]:
    """The header and the nodes of an `.et` file."""
    at, parts = 0, []
    while at < len(content):
        length = shift = 0
        while True:
            byte = content[at]
            at += 1
            length |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        parts.append(content[at : at + length])
        at += length
    header, *nodes = parts
    return messages()["GlobalMetadata"].FromString(header), [messages()["Node"].FromString(node) for node in nodes]


def value_of(attribute: Any) -> Any:
    """The value of an attribute message in Python."""
    chosen = attribute.WhichOneof("value")
    if chosen is None:
        return None
    value = getattr(attribute, chosen)
    return list(value.values) if chosen.endswith("_list") else value
