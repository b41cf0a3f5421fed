"""JSON schemas (draft 2020-12): one door, normalize(), and lists of the keywords that are followed."""

from octavo.structured.schema.case import FORMATS
from octavo.structured.schema.writer import PARTLY, SUPPORTED, normalize

__all__ = ["FORMATS", "PARTLY", "SUPPORTED", "normalize"]
