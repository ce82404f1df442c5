"""What options of the command line come to, as the spec of a method: texts to text, and nothing is imported."""

from __future__ import annotations

DEFAULT = "auto"  # what runs where no method is named
PLACEMENT = "placement"  # the part of the default that fuses nothing


def with_settings(spec: str, settings: str) -> str:
    """The spec of a method with more settings."""
    return f"{spec}{',' if ':' in spec else ':'}{settings}"


def fused(spec: str, fusion: str) -> str:
    """The method under what --fusion says: auto lets it decide, none is told to those that fuse by default, greedy
    fuses before it plans."""
    default = spec.partition(":")[0] == DEFAULT
    if fusion == "none" and default:
        return with_settings(spec, "fusion=none")
    return f"greedy-fusion:inner=[{PLACEMENT if spec == DEFAULT else spec}]" if fusion == "greedy" else spec


def fitting(spec: str, recompute: str, offload: str) -> str:
    """The method, told what it may not do to make a plan fit, where it does that by itself."""
    refused = [f"{name}=no" for name, way in (("recompute", recompute), ("offload", offload)) if way == "none"]
    default = spec.partition(":")[0] == DEFAULT
    return with_settings(spec, ",".join(refused)) if refused and default else spec
