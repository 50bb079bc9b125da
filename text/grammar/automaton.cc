/* automaton.cc - configurations of the library's parser as nodes, bytes as edges, masks kept.
 *
 * The parser is a private class of grammar_matcher.cc, which is therefore a part of this file. */
#include "text/grammar/automaton.h"

#include "compiled_grammar_impl.h"
#include "grammar_matcher.cc"
#include "tokenizer_info_impl.h"

#include <string.h>
#include <time.h>

#include <algorithm>

namespace kva
{

namespace
{

/* All is forgotten beyond this, before the next mask; a mask that adds as much is the library's. */
constexpr size_t held_max = size_t(16) << 20;
/* Bytes of tokens that are not long. */
constexpr int32_t short_max = 16;
/* Of texts whose masks are prepared. */
constexpr size_t length_max = 4096;
constexpr int ascii_max = 0x7f;

constexpr int32_t unknown = -1; /* of edges */
constexpr int32_t dead = -2;

using parser = xgrammar::GrammarMatcher::Impl;

uint64_t processor_ns()
{
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return uint64_t(now.tv_sec) * 1000000000u + uint64_t(now.tv_nsec);
}

void set_bit(uint32_t *mask, int32_t id)
{
    mask[id / 32] |= 1u << id % 32;
}

void clear_bit(uint32_t *mask, int32_t id)
{
    mask[id / 32] &= ~(1u << id % 32);
}

bool has_bit(const uint32_t *mask, int32_t id)
{
    return mask[id / 32] >> id % 32 & 1u;
}

/* Adds what a state allows whatever is around it. */
void add_certain(const xgrammar::AdaptiveTokenMask &of, const xgrammar::TokenizerInfo &info,
                 size_t words, uint32_t *mask)
{
    using store = xgrammar::AdaptiveTokenMask::StoreType;
    const auto &sorted = info.GetSortedDecodedVocab();
    if (of.store_type == store::kAccepted) {
        for (int32_t at : of.accepted_indices)
            set_bit(mask, sorted[size_t(at)].first);
        return;
    }
    if (of.store_type == store::kAcceptedBitset) {
        xgrammar::DynamicBitset all(info.GetVocabSize(), mask);
        all |= of.accepted_bitset;
        return;
    }
    std::vector<uint32_t> accepted(words, ~0u);
    for (int32_t at : of.rejected_indices)
        clear_bit(accepted.data(), sorted[size_t(at)].first);
    for (int32_t at : of.uncertain_indices)
        clear_bit(accepted.data(), sorted[size_t(at)].first);
    for (int32_t id : info.GetSpecialTokenIds())
        clear_bit(accepted.data(), id);
    for (size_t i = 0; i < words; i++)
        mask[i] |= accepted[i];
}

} // namespace

struct automaton::node {
    int32_t next[256];
    /* Its mask, if it was asked for: words, or the words that are not 0, each behind its place. */
    std::vector<uint32_t> mask;
    bool has_mask = false;
    bool is_sparse = false;

    node()
    {
        std::fill(std::begin(next), std::end(next), unknown);
    }
};

/* A way from the parser's place: bytes, the node behind each, and how many of them the parser has
 * gone, which goes only where edges are unknown. */
class automaton::walk
{
  public:
    walk(parser &of, int32_t start) : of(of), places{start}
    {
    }
    ~walk()
    {
        back_to(0);
    }

    size_t length() const
    {
        return bytes.size();
    }
    int32_t place() const
    {
        return places.back();
    }

    void go(uint8_t byte, int32_t place)
    {
        bytes.push_back(byte);
        places.push_back(place);
    }

    void back_to(size_t length)
    {
        bytes.resize(length);
        places.resize(length + 1);
        if (gone > length) {
            of.PopLastStates(int32_t(gone - length));
            gone = length;
        }
    }

    /* The parser, brought to the end of the way. */
    parser &at_end()
    {
        for (; gone < bytes.size(); gone++)
            of.Advance(bytes[gone]);
        return of;
    }
    /* It has gone one byte further than the way, which follows, or steps back. */
    void stepped()
    {
        gone++;
    }

  private:
    parser &of;
    std::vector<uint8_t> bytes;
    std::vector<int32_t> places;
    size_t gone = 0;
};

token_lengths::token_lengths(const xgrammar::TokenizerInfo &info)
    : bytes_max(short_max), short_ones((size_t(info.GetVocabSize()) + 31) / 32, ~0u)
{
    const auto &sorted = info.GetSortedDecodedVocab();
    for (size_t at = 0; at < sorted.size(); at++) {
        const int32_t length = int32_t(sorted[at].second.size());
        bytes_max = std::max(bytes_max, length);
        if (length <= short_max)
            continue;
        long_ones.push_back(int32_t(at));
        clear_bit(short_ones.data(), sorted[at].first);
    }
}

automaton::automaton(const xgrammar::CompiledGrammar &compiled,
                     const std::shared_ptr<const token_lengths> &lengths)
    : compiled(compiled), lengths(lengths),
      words((size_t(compiled.GetTokenizerInfo().GetVocabSize()) + 31) / 32)
{
}

automaton::~automaton() = default;

void automaton::forget()
{
    places.clear();
    nodes.clear();
    short_masks.clear();
    held = 0;
}

int32_t automaton::find_or_add(const key &words)
{
    auto found = places.find(words);
    if (found != places.end())
        return found->second;
    nodes.push_back(std::make_unique<node>());
    int32_t place = int32_t(nodes.size()) - 1;
    places.emplace(words, place);
    held += sizeof(node) + words.size() * sizeof(words[0]) + 128;
    return place;
}

/* Where a byte leads from a node that the parser is at; unless that is nowhere, the parser goes
 * there. Unknown: too deep. */
int32_t automaton::find_edge(node &from, parser &at, uint8_t byte)
{
    const auto [low, high] = bytes_alike(at, byte);
    int32_t next = dead;
    if (at.Advance(byte)) {
        if (!write_configuration(at, lengths->bytes_max, scratch))
            return unknown;
        next = find_or_add(scratch);
    }
    std::fill(from.next + low, from.next + high + 1, next);
    return next;
}

/* Where a byte leads from the end of the way; unknown: too deep. */
int32_t automaton::step(walk &way, uint8_t byte)
{
    node &from = *nodes[size_t(way.place())];
    if (from.next[byte] != unknown)
        return from.next[byte];
    int32_t next = find_edge(from, way.at_end(), byte);
    if (next != dead)
        way.stepped();
    return next;
}

struct too_much {
};

/* Adds those of the tokens, which are in order, that the way's beginning allows. */
void automaton::try_tokens(walk &way, const std::vector<int32_t> &uncertain, uint32_t *mask)
{
    const xgrammar::TokenizerInfo &info = compiled.ImplPtr()->tokenizer_info;
    const auto &sorted = info.GetSortedDecodedVocab();
    const auto &subtree_ends = info.GetTrieSubtreeNodesRange();
    const std::string *previous = nullptr;
    auto end = uncertain.end();
    for (auto at = uncertain.begin(); at != end;) {
        const auto &[id, token] = sorted[size_t(*at)];
        const int32_t subtree_end = subtree_ends[size_t(*at)];
        ++at;
        if (has_bit(mask, id))
            continue;
        size_t common = 0, common_max = previous ? std::min(token.size(), previous->size()) : 0;
        while (common < common_max && token[common] == (*previous)[common])
            common++;
        previous = &token;
        if (common < way.length())
            way.back_to(common);
        bool goes_on = true;
        while (goes_on && way.length() < token.size()) {
            uint8_t byte = uint8_t(token[way.length()]);
            int32_t next = step(way, byte);
            if (next == unknown || held > held_max)
                throw too_much();
            goes_on = next != dead;
            if (goes_on)
                way.go(byte, next);
        }
        if (goes_on)
            set_bit(mask, id);
        else
            at = std::lower_bound(at, end, subtree_end);
    }
    way.back_to(0);
}

void automaton::keep_mask(node &of, const uint32_t *mask)
{
    size_t set = size_t(std::count_if(mask, mask + words, [](uint32_t word) { return word != 0; }));
    of.is_sparse = 2 * set < words;
    if (of.is_sparse) {
        of.mask.reserve(2 * set);
        for (size_t i = 0; i < words; i++) {
            if (mask[i]) {
                of.mask.push_back(uint32_t(i));
                of.mask.push_back(mask[i]);
            }
        }
    } else {
        of.mask.assign(mask, mask + words);
    }
    of.has_mask = true;
    held += of.mask.size() * sizeof(of.mask[0]);
}

/* Tokens at the place where the parser is; the mask is empty. False: the library has to be asked. */
bool automaton::add_uncertain(parser &at, int32_t place, uint32_t *mask)
{
    const auto &impl = *compiled.ImplPtr();
    std::vector<const std::vector<int32_t> *> uncertain;
    for (const xgrammar::ParserState &state : latest_states(at)) {
        auto found = impl.adaptive_token_mask_cache.find(state);
        if (found == impl.adaptive_token_mask_cache.end())
            return false;
        const auto *tokens = &found->second.uncertain_indices;
        if (std::find(uncertain.begin(), uncertain.end(), tokens) != uncertain.end())
            continue;
        uncertain.push_back(tokens);
        add_certain(found->second, impl.tokenizer_info, words, mask);
    }
    walk way(at, place);
    for (const auto *tokens : uncertain)
        try_tokens(way, *tokens, mask);
    return true;
}

/* Near the bound of a repetition places differ, but not for tokens that end before it: of a place
 * like an earlier one but for its long tokens, only these are tried. */
bool automaton::make_mask(parser &at, int32_t place, uint32_t *mask)
{
    key exact, rough;
    write_configuration(at, lengths->bytes_max, exact);
    write_configuration(at, short_max, rough);
    try {
        const auto known = short_masks.find(rough);
        if (known == short_masks.end()) {
            if (!add_uncertain(at, place, mask))
                return false;
        } else {
            memcpy(mask, known->second.data(), words * sizeof(*mask));
            walk way(at, place);
            try_tokens(way, lengths->long_ones, mask);
        }
        if (exact != rough && known == short_masks.end()) {
            /* There may be no memory or no time for it: then nothing is kept. */
            std::vector<uint32_t> kept(mask, mask + words);
            for (size_t i = 0; i < words; i++)
                kept[i] &= lengths->short_ones[i];
            short_masks.emplace(rough, std::move(kept));
            held += (words + rough.size()) * sizeof(*mask) + 128;
        }
    } catch (const too_much &) {
        return false;
    }
    for (int32_t id : compiled.ImplPtr()->tokenizer_info.GetStopTokenIds()) {
        if (at.IsCompleted())
            set_bit(mask, id);
        else
            clear_bit(mask, id);
    }
    keep_mask(*nodes[size_t(place)], mask);
    return true;
}

bool automaton::mask(xgrammar::GrammarMatcher &matcher, uint32_t *mask)
{
    parser &at = *matcher.ImplPtr();
    std::lock_guard<std::mutex> guard(lock);
    if (counts_budgets(at) || !write_configuration(at, lengths->bytes_max, scratch))
        return false;
    if (held > held_max)
        forget();
    const int32_t place = find_or_add(scratch);
    const node &here = *nodes[size_t(place)];
    if (here.has_mask && !here.is_sparse) {
        memcpy(mask, here.mask.data(), words * sizeof(*mask));
        return true;
    }
    memset(mask, 0, words * sizeof(*mask));
    if (!here.has_mask)
        return make_mask(at, place, mask);
    for (size_t i = 0; i < here.mask.size(); i += 2)
        mask[here.mask[i]] = here.mask[i + 1];
    return true;
}

/* Depth first, bytes that are like no other first, and from the highest one down: JSON's quotes and
 * closing brackets come before what they would close, so that the shortest texts are gone through to
 * their ends before longer ones. */
void automaton::prepare(xgrammar::GrammarMatcher &matcher, uint64_t time_ns)
{
    struct stay {
        int32_t place;
        bool behind_space;
        int byte = ascii_max; /* to be looked at next */
        bool wide = false;    /* those with others alike, behind those without */
    };
    parser &at = *matcher.ImplPtr();
    std::lock_guard<std::mutex> guard(lock);
    if (counts_budgets(at) || !write_configuration(at, lengths->bytes_max, scratch))
        return;
    const uint64_t end_ns = processor_ns() + time_ns;
    std::vector<uint32_t> mask(words);
    std::vector<stay> stays;
    stays.push_back({find_or_add(scratch), false});
    bool goes_on = make_mask(at, stays.back().place, mask.data());
    while (goes_on && !stays.empty()) {
        stay &here = stays.back();
        if (here.byte < 0 && !here.wide) {
            here.byte = ascii_max;
            here.wide = true;
        }
        if (here.byte < 0) {
            stays.pop_back();
            if (!stays.empty())
                at.PopLastStates(1);
            continue;
        }
        const uint8_t byte = uint8_t(here.byte--);
        const bool is_space = byte == ' ' || (byte >= '\t' && byte <= '\r');
        if (is_space && here.behind_space)
            continue;
        const auto [low, high] = bytes_alike(at, byte);
        if ((low < high) != here.wide)
            continue;
        node &from = *nodes[size_t(here.place)];
        int32_t next = from.next[byte];
        bool there = next == unknown;
        if (there)
            next = find_edge(from, at, byte);
        if (next == dead)
            continue;
        if (next == unknown || nodes[size_t(next)]->has_mask) {
            if (there)
                at.PopLastStates(1);
            continue;
        }
        if (!there) {
            /* The edge's end is like the parser's place within a token only. */
            at.Advance(byte);
            next = write_configuration(at, lengths->bytes_max, scratch) ? find_or_add(scratch)
                                                                        : unknown;
            if (next == unknown || nodes[size_t(next)]->has_mask) {
                at.PopLastStates(1);
                continue;
            }
        }
        std::fill(mask.begin(), mask.end(), 0);
        goes_on = make_mask(at, next, mask.data()) && processor_ns() < end_ns &&
                  stays.size() < length_max && held < held_max / 2;
        stays.push_back({next, is_space});
    }
}

} // namespace kva
