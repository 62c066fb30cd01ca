# SPDX-License-Identifier: Apache-2.0
# Writes OUT, the bytes of FILE in the form of an array's initializer, without the braces.
file(READ ${FILE} text HEX)
string(REGEX REPLACE "(..)" "0x\\1," text "${text}")
file(WRITE ${OUT} "${text}")
