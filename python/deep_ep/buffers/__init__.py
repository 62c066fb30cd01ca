# SPDX-License-Identifier: Apache-2.0
"""Buffers of both generations."""
