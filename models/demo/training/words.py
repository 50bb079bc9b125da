"""Word lists of the generated training data; those of the benchmark are part of them.

Every word in NOUNS and ADJECTIVES is meant to be one token of the bundled tokenizer when a space
stands before it; tokenizer.py weights its corpus so that this holds for nearly all of them.
"""

from .benchmark import words as _benchmark

NOUNS = """
acorn actor airport album alley anchor angle ankle anvil apple apron arch arena arm army arrow
artist attic aunt author autumn axe baby badge bag baker ball banana band bank banner barn barrel
basket bat battery beach bead beam bean bear beard bed bee beetle bell belt bench berry bike bird
biscuit blade blanket block board boat body bone book boot border bottle bowl box boy bracket
branch brass bread brick bridge broom brother brush bucket bug building bull bus bush butter button
cabin cable cactus cake calendar camel camera camp canal candle candy cannon canoe canvas cap car
card carpet carrot cart castle cat cave cellar chain chair chalk channel cheese cherry chest
chicken child chimney church circle city clay cliff clock cloth cloud clover coach coal coast coat
coin collar comb comet compass cook copper coral cord corn corner cotton couch country court cousin
cow crab cradle crane crate cream creek crow crowd crown cup curtain curve dancer deer desert desk
diamond dinner dish doctor dog doll dolphin donkey door dragon drawer dream dress drum duck dust
eagle ear earth egg elbow engine evening eye face factory falcon family farm farmer feast feather
fence fern ferry field finger fire fish flag flame flask flock floor flour flower flute fog forest
fork fox frame friend frog fruit garage garden garlic gate gear ghost giant gift ginger girl
glacier glass globe glove goat gold goose grain grape grass guard guest guitar hail hall hammer
hand harbor harp hat hawk hay head heart helmet hen herb hero hill hinge honey hood hook horn horse
hotel house husband ice insect iron island ivory jacket jar jelly jewel judge juice jungle kettle
key king kitchen kite kitten knee knife knight knot ladder lady lake lamb lamp land lantern leaf
leather lemon letter library lily lime lion lizard loaf lock log lunch magnet maple marble market
mask mast meadow melon metal milk mill mint mirror monkey moon morning moss mother motor mountain
mouse mouth museum music nail napkin neck needle nephew nest net night noodle nose nurse nut oak
oar ocean office olive onion orange orchard organ otter oven owl oyster page paint palace palm pan
panda paper parcel park parrot path pea peach pear pearl pebble pen pencil pepper person piano
picnic pie pig pigeon pillow pilot pin pine pipe pirate planet plant plate plum pocket poem poet
pond pony porch portal potato powder prince puppy purse puzzle queen quilt rabbit radio raft rail
rain raven ribbon rice ring river road robin robot rock roof room rope rose rug sail sailor salad
salt sand saucer school scissors sea seal seed shadow sheep shelf shell shield ship shirt shoe shop
shore sister skirt sky sled snail snake snow soap sock sofa soldier song soup spade spider spoon
spring square squirrel stable stair stamp star station statue stone storm stove straw stream street
string sugar summer sun swan table tail tailor teacher temple tent thread throat throne thumb
thunder tiger tin toad toast tomato tooth torch tower town toy tractor train tray treasure tree
trumpet tulip tunnel turkey turtle uncle valley vase vest village violin voice wagon wall walnut
water wave wax whale wheat wheel whistle widow window wine wing winter wizard wolf wood wool worm
yarn zebra
""".split()

ADJECTIVES = """
able ancient angry awake bitter blue bold brave bright broken brown calm careful cheap clean clear
clever cold cool crisp curious damp dark deep dry dull eager early easy empty fair faint famous
fancy fast fierce firm flat fond free fresh funny gentle giant glad golden good grand gray great
green happy hard heavy hidden high hollow honest hot huge humble hungry icy kind large late lazy
light little lonely long loose loud low lucky mad mighty mild modern muddy narrow neat new noble
noisy odd old open pale plain pleasant polite poor pretty proud purple quick quiet rapid rare raw
red rich ripe rough round royal rusty sad safe salty secret sharp shiny short shy silent silly
silver simple sleepy slow small smooth soft solid sour steady steep stiff still strange strong
sunny sweet swift tall tame tender thick thin tidy tiny tired tough vast warm weak weary wet white
wide wild wise wooden yellow young
""".split()

VERBS = """
saw found carried painted washed watched followed helped hid bought sold lifted moved dropped
cleaned fixed opened closed kept lost wanted liked loved made built broke took gave showed
remembered touched pulled pushed counted drew admired
""".split()

NOUNS = list(dict.fromkeys([*_benchmark.NOUNS, *NOUNS]))
ADJECTIVES = list(dict.fromkeys([*_benchmark.ADJECTIVES, *ADJECTIVES]))

NAMES = """
Anna Ben Clara Daniel Emma Felix Grace Henry Iris Jack Kate Leo Mary Nora Oscar Paul Rosa Sam Tom
Lucy Max Lily Peter Sara Hugo Jane Adam Ella Fred Alice
""".split()

COLORS = "red blue green yellow white black brown pink purple orange gray golden".split()

NUMBER_WORDS = ("zero one two three four five six seven eight nine ten eleven twelve thirteen "
                "fourteen fifteen sixteen seventeen eighteen nineteen twenty").split()

NOISE = ("The grass is green. The sky is blue. The sun is yellow. Here we go. "
         "There and back again.")
