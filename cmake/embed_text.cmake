# Writes OUT, the bytes of FILE as what stands between the braces of an array.
file(READ ${FILE} text HEX)
string(REGEX REPLACE "(..)" "0x\\1," text "${text}")
file(WRITE ${OUT} "${text}")
