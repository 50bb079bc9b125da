/* signals.h - what the keyboard and the system tell the chat: Ctrl-C, an end, a new window size.
 *
 * The handlers only set flags. Waiting for input is the one place where a signal must not slip in
 * between the look at the flags and the wait: kva_chat_signals_wait closes that gap.
 *
 * Thread rule: main thread; handlers may run on any. Signal handlers belong to the process, so one
 * chat may run at a time; the former handlers come back with kva_chat_signals_restore. */
#ifndef KVA_CLIENTS_CHAT_SIGNALS_H
#define KVA_CLIENTS_CHAT_SIGNALS_H

#include "base/kva.h"

#include <signal.h>
#include <stdbool.h>

#define KVA_CHAT_SIGNAL_COUNT 6

struct kva_chat_signals {
    struct sigaction former[KVA_CHAT_SIGNAL_COUNT];
};

void kva_chat_signals_install(struct kva_chat_signals *signals);
void kva_chat_signals_restore(const struct kva_chat_signals *signals);

/* Ctrl-C was pressed since the last kva_chat_signals_take_interrupt. */
bool kva_chat_signals_interrupted(void);
bool kva_chat_signals_take_interrupt(void);

/* SIGTERM or SIGHUP came: for good. */
bool kva_chat_signals_ended(void);

/* The window's size changed; the process was stopped and goes on. */
bool kva_chat_signals_take_resized(void);
bool kva_chat_signals_take_continued(void);

/* Waits until `fd` is readable (or at its end) or one of these signals comes, also one that came
 * before. True: look at fd. */
bool kva_chat_signals_wait(int fd);

#endif
