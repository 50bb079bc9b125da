/* thread.h - what a thread asks of the system's scheduler.
 *
 * Thread rule: the calling thread's own. */
#ifndef KVA_BASE_THREAD_H
#define KVA_BASE_THREAD_H

/* This thread sleeps, and works for fractions of a millisecond when it is woken: it is to have a core
 * at once then, also where threads that compute have all of them. Its share of the processor stays
 * what it is; a wish, which Linux grants from 6.12 on. */
void kva_thread_be_prompt(void);

#endif
