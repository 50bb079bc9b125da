#!/bin/sh
# as_cpp.sh SOURCE.cu OUTPUT.cpp: a C++ file that includes the source.
echo "#include \"$(realpath "$1")\"" >"$2"
