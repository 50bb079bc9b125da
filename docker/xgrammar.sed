# A string whose length is bounded must not have control characters, which JSON does not allow in strings.
s/AddCharacterClass({{'"', '"'}, {'\\\\', '\\\\'}, {'\\r', '\\r'}, {'\\n', '\\n'}}, true)/AddCharacterClass({{0, 0x1f}, {'"', '"'}, {'\\\\', '\\\\'}}, true)/
# A further property must not be one of those that the schema describes, spelled with escapes.
/^  choices\.push_back(Sequence({ByteString("\\\\"), RuleRef(kBasicEscape), RuleRef(kBasicStringSub)}));$/d
# A bounded repetition is counted, not written out up to 128 times: a mask for each of them took 25 ms to make.
s/static const int64_t kUnzipThreshold = 128;/static const int64_t kUnzipThreshold = 4;/
