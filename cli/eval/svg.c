/* svg.c - the result as heat maps: a row of panels per policy, in each of them a cell per layer and
 * KV head.
 *
 *     specache:2:64
 *     mass covered      mass, best rows   rows hit              0% [      ] 100%
 *     layer 0  [ ][ ]   0  [ ][ ]         0  [ ][ ]
 *           1  [ ][ ]   1  [ ][ ]         1  [ ][ ]
 *              0  1        0  1              0  1
 *             KV head     KV head           KV head */
#include "cli/eval/eval.h"

#include "base/utf8.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    MARGIN = 24,
    AXIS_LEFT = 40,   /* labels of layers */
    HEAD_HEIGHT = 64, /* title of the picture */
    NAME_HEIGHT = 28, /* of a policy */
    TITLE_HEIGHT = 20,
    AXIS_HEIGHT = 40,
    PANEL_GAP = 32,
    PANEL_WIDTH_MIN = 150,
    CELL_HEIGHT = 18,
    LEGEND_WIDTH = 160,
    WIDTH_MIN = 640,
};

enum panel {
    COVERED,
    CEILING,
    HIT,
    PANELS,
};

static const char *const titles[PANELS] = {
    [HIT] = "oracle's rows hit",
    [COVERED] = "mass covered",
    [CEILING] = "mass, best k rows",
};

struct drawing {
    const struct kva_cli_eval *eval;
    struct kva_buf *out;
    uint32_t layers, heads;
    uint32_t cell_width;
};

/* Text that may have been cut within a character. */
static void put_text(struct kva_buf *out, const char *text)
{
    const size_t length = strlen(text);
    for (const char *end = text + length - kva_utf8_incomplete_tail(text, length); text < end;
         text++) {
        if ((unsigned char)*text < ' ')
            kva_buf_putc(out, ' ');
        else if (*text == '&')
            kva_buf_puts(out, "&amp;");
        else if (*text == '<')
            kva_buf_puts(out, "&lt;");
        else if (*text == '>')
            kva_buf_puts(out, "&gt;");
        else
            kva_buf_putc(out, *text);
    }
}

static void label(const struct drawing *d, uint32_t x, uint32_t y, const char *style,
                  const char *text)
{
    kva_buf_printf(d->out, "<text x=\"%u\" y=\"%u\" %s>", x, y, style);
    put_text(d->out, text);
    kva_buf_puts(d->out, "</text>\n");
}

/* From nearly white over blue to nearly black. */
static void color_of(double value, char text[8])
{
    static const int stops[3][3] = {{247, 251, 255}, {107, 174, 214}, {8, 48, 107}};
    double at = value * 2;
    int i = at < 1 ? 0 : 1, rgb[3];
    for (int j = 0; j < 3; j++)
        rgb[j] = (int)lround(stops[i][j] + (at - i) * (stops[i + 1][j] - stops[i][j]));
    snprintf(text, 8, "#%02x%02x%02x", (unsigned)rgb[0] & 255, (unsigned)rgb[1] & 255,
             (unsigned)rgb[2] & 255);
}

static double value_of(const struct kva_coverage_head *head, enum panel panel)
{
    if (panel == HIT)
        return head->wanted ? (double)head->hit / (double)head->wanted : NAN;
    double sum = panel == COVERED ? head->covered : head->ceiling;
    /* Sums of probabilities end a rounding above 1. */
    return head->steps ? fmin(sum / (double)head->steps, 1) : NAN;
}

static void draw_cell(const struct drawing *d, uint32_t x, uint32_t y, double value)
{
    char color[8], number[16];
    if (isnan(value)) {
        kva_buf_printf(d->out,
                       "<rect x=\"%u\" y=\"%u\" width=\"%u\" height=\"%u\" fill=\"#eee\"/>\n", x, y,
                       d->cell_width - 1, CELL_HEIGHT - 1);
        return;
    }
    color_of(value, color);
    kva_buf_printf(d->out, "<rect x=\"%u\" y=\"%u\" width=\"%u\" height=\"%u\" fill=\"%s\"/>\n", x,
                   y, d->cell_width - 1, CELL_HEIGHT - 1, color);
    if (d->cell_width < 22)
        return;
    snprintf(number, sizeof(number), d->cell_width < 34 ? "%.0f" : "%.1f", 100 * value);
    label(d, x + d->cell_width / 2, y + 13,
          value > 0.6 ? "class=\"n\" fill=\"#fff\"" : "class=\"n\" fill=\"#222\"", number);
}

static void draw_panel(const struct drawing *d, const struct kva_eval_policy *policy,
                       enum panel panel, uint32_t x, uint32_t y)
{
    char text[32];
    uint32_t width = d->heads * d->cell_width, bottom = y + TITLE_HEIGHT + d->layers * CELL_HEIGHT;
    label(d, x + AXIS_LEFT, y + 13, "class=\"t\"", titles[panel]);
    y += TITLE_HEIGHT;
    /* Every label where there is room for it. */
    uint32_t every = d->cell_width < 18 ? 4 : 1;
    for (uint32_t layer = 0; layer < d->layers; layer++) {
        snprintf(text, sizeof(text), "%u", layer);
        label(d, x + AXIS_LEFT - 6, y + layer * CELL_HEIGHT + 13, "class=\"a\" text-anchor=\"end\"",
              text);
        for (uint32_t head = 0; head < d->heads; head++)
            draw_cell(d, x + AXIS_LEFT + head * d->cell_width, y + layer * CELL_HEIGHT,
                      value_of(&policy->heads[layer * d->heads + head], panel));
    }
    for (uint32_t head = 0; head < d->heads; head += every) {
        snprintf(text, sizeof(text), "%u", head);
        label(d, x + AXIS_LEFT + head * d->cell_width + d->cell_width / 2, bottom + 14,
              "class=\"a\" text-anchor=\"middle\"", text);
    }
    label(d, x + AXIS_LEFT + width / 2, bottom + 30, "class=\"a\" text-anchor=\"middle\"",
          "KV head");
    uint32_t middle = y + d->layers * CELL_HEIGHT / 2;
    kva_buf_printf(d->out,
                   "<text x=\"%u\" y=\"%u\" class=\"a\" text-anchor=\"middle\" "
                   "transform=\"rotate(-90 %u %u)\">layer</text>\n",
                   x + 10, middle, x + 10, middle);
}

static bool has_panel(const struct kva_eval_policy *policy, enum panel panel)
{
    return panel == COVERED || kva_kv_spec_k_max(&policy->spec) > 0;
}

static bool is_drawn(const struct kva_eval_policy *policy)
{
    return policy->heads && !kva_kv_policy_exact(policy->spec.policy);
}

static uint32_t panel_width(const struct drawing *d)
{
    return AXIS_LEFT + kva_max_u32(d->heads * d->cell_width, PANEL_WIDTH_MIN);
}

static uint32_t row_height(const struct drawing *d)
{
    return NAME_HEIGHT + TITLE_HEIGHT + d->layers * CELL_HEIGHT + AXIS_HEIGHT;
}

/* Steps that the first of the policies that are drawn was looked at in. */
static uint64_t looks_of(const struct kva_cli_eval *eval)
{
    const struct kva_eval *r = eval->result;
    for (uint32_t i = 0; i < r->policy_count; i++) {
        if (is_drawn(&r->policies[i]))
            return r->policies[i].looks;
    }
    return 0;
}

static void draw_legend(const struct drawing *d, uint32_t x, uint32_t y)
{
    enum { STEPS = 40 };
    char color[8];
    for (uint32_t i = 0; i < STEPS; i++) {
        color_of((i + 0.5) / STEPS, color);
        kva_buf_printf(d->out, "<rect x=\"%u\" y=\"%u\" width=\"%u\" height=\"10\" fill=\"%s\"/>\n",
                       x + i * LEGEND_WIDTH / STEPS, y, LEGEND_WIDTH / STEPS, color);
    }
    label(d, x, y + 24, "class=\"a\"", "0%");
    label(d, x + LEGEND_WIDTH, y + 24, "class=\"a\" text-anchor=\"end\"", "100%");
}

static void draw_head(const struct drawing *d, uint32_t width, uint32_t height)
{
    const struct kva_cli_eval *eval = d->eval;
    char line[256];
    kva_buf_printf(d->out,
                   "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%u\" height=\"%u\" "
                   "viewBox=\"0 0 %u %u\" font-family=\"sans-serif\" font-size=\"12\">\n"
                   "<style>.h{font-size:15px;font-weight:bold}.p{font-weight:bold}"
                   ".t{fill:#222}.a{font-size:11px;fill:#555}"
                   ".n{font-size:10px;text-anchor:middle}</style>\n"
                   "<rect width=\"%u\" height=\"%u\" fill=\"#fff\"/>\n",
                   width, height, width, height, width, height);
    snprintf(line, sizeof(line), "%.64s: what decoding attends to in 16 bits", eval->instance.name);
    label(d, MARGIN, 30, "class=\"h\"", line);
    const char *slash = strrchr(eval->file_path, '/');
    snprintf(line, sizeof(line), "%.80s: %u %s, %llu steps, in percent",
             slash ? slash + 1 : eval->file_path, eval->sample_count,
             eval->config->eval_text ? (eval->sample_count == 1 ? "window" : "windows")
                                     : (eval->sample_count == 1 ? "prompt" : "prompts"),
             (unsigned long long)looks_of(eval));
    label(d, MARGIN, 48, "class=\"a\"", line);
    draw_legend(d, width - MARGIN - LEGEND_WIDTH, 20);
}

void kva_cli_eval_svg(const struct kva_cli_eval *eval, struct kva_buf *out)
{
    const struct kva_eval *r = eval->result;
    struct drawing d = {.eval = eval, .out = out, .layers = r->layers, .heads = r->kv_heads};
    d.cell_width = d.heads <= 12 ? 36 : d.heads <= 20 ? 24 : 14;
    uint32_t rows = 0;
    for (uint32_t i = 0; i < r->policy_count; i++)
        rows += is_drawn(&r->policies[i]);
    uint32_t width = 2 * MARGIN + PANELS * panel_width(&d) + (PANELS - 1) * PANEL_GAP;
    width = kva_max_u32(width, WIDTH_MIN);
    draw_head(&d, width, HEAD_HEIGHT + kva_max_u32(rows, 1) * row_height(&d) + MARGIN);
    uint32_t y = HEAD_HEIGHT;
    for (uint32_t i = 0; i < r->policy_count; i++) {
        const struct kva_eval_policy *policy = &r->policies[i];
        if (!is_drawn(policy))
            continue;
        label(&d, MARGIN, y + 20, "class=\"p\"", eval->names[i]);
        uint32_t x = MARGIN;
        for (uint32_t panel = 0; panel < PANELS; panel++) {
            if (!has_panel(policy, (enum panel)panel))
                continue;
            draw_panel(&d, policy, (enum panel)panel, x, y + NAME_HEIGHT);
            x += panel_width(&d) + PANEL_GAP;
        }
        y += row_height(&d);
    }
    if (rows == 0)
        label(&d, MARGIN, y + 20, "class=\"t\"",
              "Nothing to draw: the policies are exact, or attention was not looked at.");
    kva_buf_puts(out, "</svg>\n");
}
