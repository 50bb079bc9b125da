"""Word lists for keys, values and word-counting tasks.

RULER draws its words from a third-party package; these lists are this project's own, so that a
run needs nothing downloaded. The *order* of each tuple is part of the benchmark's definition:
changing it changes every sample of every seed (the golden tests say so).
"""

from __future__ import annotations

ADJECTIVES: tuple[str, ...] = tuple(
    """
    able ample amber ancient arctic aware azure basic bitter blank blunt bold brave brief bright
    brisk broad bronze bulky busy calm candid careful casual cheap cheerful chief chilly civil
    clean clear clever close cloudy coarse cold common compact cosmic costly crimson crisp crooked
    cruel curious curly daily damp daring dark deep dense different dim distant divine dizzy double
    dry dull dusty eager early eastern easy elastic elegant empty equal exact exotic faint fair
    faithful famous fancy fast feeble festive fierce final firm flat fluent fond foolish foreign
    formal fragile frank fresh friendly frosty frozen gentle giant glad global golden graceful
    grand grateful gray greedy green handy happy hard harsh hasty heavy helpful hidden hollow
    honest humble hungry icy idle jolly keen kind large late lazy level light likely little lively
    local lonely long loose loud lovely loyal lucky marine mellow merry mighty mild minor misty
    modern modest muddy narrow native naval neat nervous new noble noisy northern novel obvious
    odd old orange orderly outer pale patient perfect plain pleasant polite poor precise pretty
    private proper proud purple quick quiet rapid rare raw ready recent regular remote rich rigid
    ripe rough round royal rural rustic sacred salty sandy scarlet secret senior serious severe
    shallow sharp shiny short shy silent silky silver simple sincere sleepy slender slim slow
    smooth snowy sober social soft solar solid sour southern spare spicy stable steady steep stiff
    strange strict strong sturdy subtle sudden sunny super sweet swift tall tame tender thick thin
    tidy tiny tired tough tranquil tropical true urban useful vague valid vast velvet violet vital
    vivid warm wary watchful weak wealthy western wet whole wide wild windy wise witty wooden
    worthy yellow young zealous
    """.split()
)

NOUNS: tuple[str, ...] = tuple(
    """
    acorn actor album alley almond anchor animal ankle answer apple apron arch arena armor arrow
    artist atlas attic autumn badge bakery balcony ballad bamboo banana banner barn barrel basin
    basket battery beach beacon bean beard beaver bell bench berry bird biscuit blanket blossom
    board boat border bottle bowl branch bread breeze brick bridge brook broom brother brush bucket
    buffalo bundle butter button cabin cable cactus camel camera canal candle canoe canvas canyon
    captain caravan cargo carpet carrot castle cattle cedar cellar ceramic chain chair chalk chapel
    chapter cherry chess chest chimney choir cinema circle citizen clay clerk cliff clock cloth
    clover coach coast cobbler coffee coin collar comet compass copper coral corner cottage cotton
    cousin cradle crane crayon creek cricket crop crown crystal cup curtain dagger daisy dancer
    deer desert desk diary dinner doctor dolphin donkey door dragon drawer drum eagle earth easel
    elbow elephant ember engine envelope fabric falcon farmer feather fence fern ferry fiddle field
    finger flag flame flask flute forest fork fossil fountain fox frame galaxy garden garlic gate
    geyser ginger giraffe glacier glove goat goose grain granite grape grass guitar hammer harbor
    harp harvest hat hawk hedge helmet herald heron hill honey hood hoof horizon horn horse hotel
    house hunter iceberg infant ink insect island ivory jacket jaguar jar jelly jewel journal
    journey judge juggler jungle kennel kettle key kitchen kite kitten knight ladder lagoon lake
    lamp lantern lark laundry lawyer leaf ledger lemon leopard letter library lily linen lion
    lizard lobster locket lumber lute magnet mango mansion maple marble market marsh mason meadow
    medal melon merchant meteor mill miner mirror monk monkey moose morning mosaic moth motor
    mountain mouse museum mustard napkin needlework nest net notebook oak oasis oatmeal ocean olive
    onion opera orchard orchid otter outfit oven owl oyster paddle painter palace panda panther
    paper parade parcel parrot pasture path peach peacock peanut pebble pelican pencil pepper
    perfume piano picnic pigeon pilgrim pillow pilot pine pioneer pirate pitcher planet plaster
    platter plaza plum pocket poet pond pony porch potato potter powder prairie prince puddle
    pumpkin puppet puzzle pyramid quail quarry queen quilt rabbit raccoon radish raft railway
    rainbow ranch raven reef ribbon rider river robin rocket roof rooster rope rose ruby sailor
    salad salmon sandal sapling satchel saucer scarf scholar school sculptor seal season shadow
    shark sheep shelf shepherd shield shoe shovel singer sister skeleton sled snail soldier spider
    spinach sponge spoon spring squirrel stable staircase station statue stove stream street student
    summer surgeon swallow swan table tailor tavern teacher temple tent thimble thistle throne
    thunder tiger timber toaster tomato tower tractor trader train trellis trumpet tulip tunnel
    turkey turtle umbrella uncle valley vase veil village vine violin visitor volcano wagon waiter
    walnut walrus warbler wardrobe watch water weaver wheat wheel whistle widow willow window
    winter wizard wolf worker writer yard yarn zebra zipper
    """.split()
)

VERBS: tuple[str, ...] = tuple(
    """
    accept admire advise agree allow announce applaud approve argue arrange arrive attend avoid
    bake balance bathe begin believe borrow bounce breathe build carry carve celebrate chase choose
    climb collect compare complain confess connect consider contain cough count cover crawl create
    dance decide decorate deliver describe destroy discover divide doubt dream employ enjoy escape
    examine excuse expand explain explore follow forget forgive gather grow guess handle happen
    hesitate hurry imagine improve include inform injure invent invite itch juggle knit knock laugh
    launch learn listen manage march measure melt mend multiply murmur notice obey observe obtain
    occur offer paint perform permit plant polish prefer prepare pretend prevent produce promise
    protect punish realize receive recite refuse rejoice remember remind remove repair repeat
    request rescue retire return scatter scratch search separate serve shiver shout smile sneeze
    spell squeeze stretch suggest supply surprise suspect tempt thank travel tumble unite vanish
    wander whisper wonder worry wrestle yawn
    """.split()
)

# "stable" is both an adjective and a noun above, so the union is made unique here.
ALL_WORDS: tuple[str, ...] = tuple(sorted(set(ADJECTIVES) | set(NOUNS) | set(VERBS)))
