/* configuration.h - where the library's parser is, as far as it matters (inside text/grammar, C++).
 *
 * What may come next depends on the parser's latest states and, through the rows in which their rules
 * began, on those that wait for these rules to end: not on where in the text that is.
 *
 * Thread rule: that of the parser. */
#ifndef KVA_TEXT_GRAMMAR_CONFIGURATION_H
#define KVA_TEXT_GRAMMAR_CONFIGURATION_H

#include "earley_parser.h"

#include <stddef.h>
#include <stdint.h>

#include <utility>
#include <vector>

namespace kva
{

/* A configuration in words. */
using key = std::vector<int32_t>;

struct key_hash {
    size_t operator()(const key &words) const;
};

/* Parsers that write the same go on in the same way for `bytes_max` bytes. False: too deep. */
bool write_configuration(const xgrammar::EarleyParser &of, int32_t bytes_max, key &out);

/* The states that wait for a byte; valid until the parser moves. */
using states = xgrammar::Compact2DArray<xgrammar::ParserState>::Row;
states latest_states(const xgrammar::EarleyParser &of);

/* Whether tokens and characters are counted, which a configuration does not say. */
bool counts_budgets(const xgrammar::EarleyParser &of);

/* The bytes from .. to around `byte` that do the same to the latest states: no edge of theirs tells
 * them apart. */
std::pair<int, int> bytes_alike(const xgrammar::EarleyParser &of, uint8_t byte);

} // namespace kva

#endif
