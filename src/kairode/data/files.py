"""The functions of `kairode.files`, under their earlier name."""

from kairode.files import check_target

__all__ = ["check_target", "whole"]
