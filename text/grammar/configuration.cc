/* configuration.cc - what of the library's parser decides about what comes next, in words. */
#include "text/grammar/configuration.h"

#include <algorithm>
#include <iterator>

namespace kva
{

namespace
{

/* Rules that a configuration is within. */
constexpr size_t rules_max = 256;

using parser_state = xgrammar::ParserState;

/* The library's parser keeps its rows to itself and its heirs. */
struct rows : xgrammar::EarleyParser {
    /* States that wait for a byte, by position in the text. */
    static const auto &scanable(const xgrammar::EarleyParser &of)
    {
        return of.*(&rows::scanable_state_history_);
    }
    /* (rule, state): states that wait for a rule which began there. */
    static const auto &waiting(const xgrammar::EarleyParser &of)
    {
        return of.*(&rows::rule_id_to_completable_states_);
    }
    static const xgrammar::Grammar &grammar(const xgrammar::EarleyParser &of)
    {
        return of.*(&rows::grammar_);
    }
    static bool counts(const xgrammar::EarleyParser &of)
    {
        return of.*(&rows::has_budget_rules_) || of.*(&rows::has_char_budget_rules_);
    }
};

/* Writes the configuration of a parser. A rule that began in some row is named by the order in which
 * it is come upon, so that rows have no numbers. Repetitions are counted by how many must and may
 * still come, but not beyond what fits a token: nodes are told apart by what is within one token. */
class key_writer
{
  public:
    key_writer(const xgrammar::EarleyParser &source, int32_t bytes_max, key &out)
        : source(source), bytes_max(bytes_max), out(out)
    {
    }

    /* False: too deep. */
    bool write()
    {
        const auto &waiting = rows::waiting(source);
        const auto states = latest_states(source);
        out.clear();
        out.push_back(source.IsCompleted());
        out.push_back(states.size());
        for (const parser_state &state : states)
            put(state);
        for (size_t i = 0; i < rules.size() && rules.size() <= rules_max; i++) {
            const auto [row, rule] = rules[i];
            size_t count_at = out.size();
            out.push_back(0);
            for (const auto &[awaited, state] : waiting[row]) {
                if (awaited != rule)
                    continue;
                out[count_at]++;
                put(state);
            }
        }
        return rules.size() <= rules_max;
    }

  private:
    int32_t name(int32_t row, int32_t rule)
    {
        if (row == parser_state::kNoPrevInputPos)
            return -1;
        const std::pair<int32_t, int32_t> wanted(row, rule);
        auto at = std::find(rules.begin(), rules.end(), wanted);
        if (at == rules.end())
            at = rules.insert(at, wanted);
        return int32_t(at - rules.begin());
    }

    void put(const parser_state &state)
    {
        const auto [must, may] = repetitions(state);
        const int32_t words[] = {state.rule_id,
                                 state.sequence_id,
                                 state.element_id,
                                 state.sub_element_id,
                                 state.partial_codepoint,
                                 name(state.rule_start_pos, state.rule_id),
                                 must,
                                 may};
        out.insert(out.end(), std::begin(words), std::end(words));
    }

    /* Each takes a byte at least. */
    std::pair<int32_t, int32_t> repetitions(const parser_state &state) const
    {
        const int32_t count = state.repeat_count;
        const auto &grammar = rows::grammar(source);
        if (state.rule_id == -1)
            return {count, 0};
        const auto &fsm = grammar->per_rule_fsms[state.rule_id]->GetFsm().GetFsm();
        for (const auto &edge : fsm.GetEdges(state.element_id)) {
            if (!edge.IsRepeatRef())
                continue;
            const auto info = grammar->complete_fsm.GetRepeatEdgeInfo(edge.GetAuxIndex());
            return {std::min(std::max(info.Lower() - count, 0), bytes_max + 1),
                    std::min(info.Upper() - count, bytes_max + 1)};
        }
        return {count, 0};
    }

    const xgrammar::EarleyParser &source;
    const int32_t bytes_max;
    key &out;
    std::vector<std::pair<int32_t, int32_t>> rules;
};

} // namespace

states latest_states(const xgrammar::EarleyParser &of)
{
    const auto &history = rows::scanable(of);
    return history[history.size() - 1];
}

bool counts_budgets(const xgrammar::EarleyParser &of)
{
    return rows::counts(of);
}

bool write_configuration(const xgrammar::EarleyParser &of, int32_t bytes_max, key &out)
{
    return key_writer(of, bytes_max, out).write();
}

std::pair<int, int> bytes_alike(const xgrammar::EarleyParser &of, uint8_t byte)
{
    int low = 0, high = 255;
    const auto &grammar = rows::grammar(of);
    for (const parser_state &state : latest_states(of)) {
        if (state.rule_id == -1)
            return {byte, byte};
        const auto &fsm = grammar->per_rule_fsms[state.rule_id].value();
        for (const auto &edge : fsm.GetFsm().GetFsm().GetEdges(state.element_id)) {
            if (!edge.IsCharRange())
                continue;
            if (edge.max < byte) {
                low = std::max(low, edge.max + 1);
            } else if (edge.min > byte) {
                high = std::min(high, edge.min - 1);
            } else {
                low = std::max<int>(low, edge.min);
                high = std::min<int>(high, edge.max);
            }
        }
    }
    return {low, high};
}

size_t key_hash::operator()(const key &words) const
{
    uint64_t hash = 14695981039346656037u;
    for (int32_t word : words)
        hash = (hash ^ uint32_t(word)) * 1099511628211u;
    return size_t(hash ^ hash >> 32);
}

} // namespace kva
