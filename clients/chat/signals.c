/* signals.c - handlers that set flags. */
#include "clients/chat/signals.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { INTERRUPT, TERMINATE, HANGUP, RESIZE, CONTINUE, BROKEN_PIPE };

static const int numbers[KVA_CHAT_SIGNAL_COUNT] = {SIGINT,   SIGTERM, SIGHUP,
                                                   SIGWINCH, SIGCONT, SIGPIPE};

/* File scope, because a handler has no other way to reach them. */
static atomic_bool flags[KVA_CHAT_SIGNAL_COUNT];

static void on_signal(int number)
{
    for (int i = 0; i < KVA_CHAT_SIGNAL_COUNT; i++) {
        if (numbers[i] == number)
            atomic_store(&flags[i], true);
    }
}

void kva_chat_signals_install(struct kva_chat_signals *signals)
{
    struct sigaction action;
    memset(&action, 0, sizeof(action));
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < KVA_CHAT_SIGNAL_COUNT; i++) {
        atomic_store(&flags[i], false);
        /* Every wait here is a poll, which a signal ends in any case; a write to the terminal,
         * though, must not fail because of one. A broken pipe is a failed write. */
        action.sa_flags = SA_RESTART;
        action.sa_handler = i == BROKEN_PIPE ? SIG_IGN : on_signal;
        sigaction(numbers[i], &action, &signals->former[i]);
    }
}

void kva_chat_signals_restore(const struct kva_chat_signals *signals)
{
    for (int i = 0; i < KVA_CHAT_SIGNAL_COUNT; i++)
        sigaction(numbers[i], &signals->former[i], NULL);
}

bool kva_chat_signals_interrupted(void)
{
    return atomic_load(&flags[INTERRUPT]);
}

bool kva_chat_signals_take_interrupt(void)
{
    return atomic_exchange(&flags[INTERRUPT], false);
}

bool kva_chat_signals_ended(void)
{
    return atomic_load(&flags[TERMINATE]) || atomic_load(&flags[HANGUP]);
}

bool kva_chat_signals_take_resized(void)
{
    return atomic_exchange(&flags[RESIZE], false);
}

bool kva_chat_signals_take_continued(void)
{
    return atomic_exchange(&flags[CONTINUE], false);
}

static bool any_flag(void)
{
    for (int i = 0; i < KVA_CHAT_SIGNAL_COUNT; i++) {
        if (atomic_load(&flags[i]))
            return true;
    }
    return false;
}

bool kva_chat_signals_wait(int fd)
{
    sigset_t block, before;
    sigemptyset(&block);
    for (int i = 0; i < KVA_CHAT_SIGNAL_COUNT; i++)
        sigaddset(&block, numbers[i]);
    pthread_sigmask(SIG_BLOCK, &block, &before);
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    int ready = any_flag() ? 0 : ppoll(&poll_fd, 1, NULL, &before);
    /* A descriptor that cannot be polled is left to read(2) to complain about. */
    bool look = ready > 0 || (ready < 0 && errno != EINTR);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return look;
}
