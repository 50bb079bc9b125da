# A string whose length is bounded must not have control characters, which JSON does not allow in strings.
s/AddCharacterClass({{'"', '"'}, {'\\\\', '\\\\'}, {'\\r', '\\r'}, {'\\n', '\\n'}}, true)/AddCharacterClass({{0, 0x1f}, {'"', '"'}, {'\\\\', '\\\\'}}, true)/
# A further property must not be one of those that the schema describes, spelled with escapes.
/^  choices\.push_back(Sequence({ByteString("\\\\"), RuleRef(kBasicEscape), RuleRef(kBasicStringSub)}));$/d
